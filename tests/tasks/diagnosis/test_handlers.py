"""The use of handlers, read from samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from leasing.web import cache
from tasks.diagnosis.handlers import DAY, HOUR, read_handlers, usual
from tests.tasks.support import sample_handlers

pytestmark = pytest.mark.django_db

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def nothing_shared() -> None:
    cache.forget()


def seconds(length: timedelta | None) -> float:
    assert length is not None
    return length.total_seconds()


def p50(name: str) -> float:
    return seconds(usual([name], NOW)[name].run_p50)


def test_samples_of_several_queues_add_up_to_percentiles() -> None:
    sample_handlers(NOW, 10, sync=(1, {0.3: 90}), export=(0, {6.0: 1}))
    sample_handlers(NOW, 20, "mail", sync=(2, {0.3: 4, 0.6: 6}))

    found = read_handlers(NOW, 600)

    assert sorted(found) == ["export", "sync"]
    sync = found["sync"]
    assert (sync.count, sync.failures) == (103, 3)
    assert seconds(sync.run_p50) == pytest.approx(0.3, rel=0.2)
    assert seconds(sync.run_p95) == pytest.approx(0.6, rel=0.2)
    assert seconds(found["export"].wait_p95) == pytest.approx(6.0, rel=0.2)


@pytest.mark.parametrize(("span", "count"), [(600, 1), (HOUR, 2), (DAY, 3)])
def test_a_span_has_the_samples_of_its_time(span: int, count: int) -> None:
    for ago in (500, 3_000, 80_000, 90_000):
        sample_handlers(NOW, ago, sync=(0, {1.0: 1}))

    assert read_handlers(NOW, span)["sync"].count == count


def test_a_handler_that_only_failed_has_no_durations() -> None:
    sample_handlers(NOW, 10, sync=(3, {}))

    found = read_handlers(NOW, 600)["sync"]

    assert (found.count, found.run_p50, found.wait_p95) == (3, None, None)


def test_what_is_usual_is_that_of_the_hour_or_of_the_day_where_it_had_few() -> None:
    sample_handlers(NOW, 10, sync=(0, {1.0: 5}), export=(0, {1.0: 1}), rare=(0, {1.0: 4}))
    sample_handlers(NOW, 5_000, sync=(0, {9.0: 50}), export=(0, {6.0: 4}))

    assert p50("sync") == pytest.approx(1.0, rel=0.2)
    assert p50("export") == pytest.approx(6.0, rel=0.2)
    assert usual(["rare", "unknown"], NOW) == {}
