"""Moments from outside, before a database sees them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasing.validation.values import check_moment

OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(3, 1, 1), datetime(9997, 12, 31)), OFFSETS)
def test_a_moment_of_any_zone_is_the_same_in_utc(naive: datetime, zone: timezone) -> None:
    moment = naive.replace(tzinfo=zone)
    checked = check_moment(moment, "scheduled_at")
    assert checked == moment and checked.tzinfo is UTC


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2030, 1, 1),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    ],
)
def test_a_moment_that_some_zone_cannot_tell_is_refused(moment: datetime) -> None:
    with pytest.raises(ValueError, match="scheduled_at must"):
        check_moment(moment, "scheduled_at")
