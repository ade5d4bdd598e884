"""Charts read from samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tasks.dashboard.charts import Chart, series
from tasks.models import Sample

pytestmark = pytest.mark.django_db

START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = int(START.timestamp())


def sample(offset: int, queue: str = "default", **what: Any) -> Sample:
    return Sample.objects.create(slot=SECONDS + offset, queue=queue, **what)


def charts(seconds: int, **options: Any) -> dict[str, Chart]:
    read = series(START, START + timedelta(seconds=seconds), **options)
    return {chart.key: chart for chart in read}


def values(chart: Chart, name: str) -> list[float | None]:
    (line,) = [line for line in chart.lines if line.name == name]
    return list(line.values)


def test_a_slot_without_a_sample_is_a_gap_and_not_a_zero() -> None:
    sample(0, completed=2)
    sample(20, completed=0)

    chart = charts(30)["rate"]

    assert values(chart, "completed") == [12.0, None, 0.0]
    assert chart.moments == [START + timedelta(seconds=s) for s in (0, 10, 20)]


def test_queues_add_up_and_one_of_them_can_be_asked_for() -> None:
    sample(0, "mail", ready=3, running=1)
    sample(0, "default", ready=4)

    assert values(charts(10)["depth"], "ready") == [7.0]
    assert values(charts(10, queue="mail")["depth"], "ready") == [3.0]
    assert values(charts(10, queue="mail")["depth"], "running") == [1.0]


def test_many_slots_share_few_points_and_keep_their_mean() -> None:
    for index in range(12):
        sample(10 * index, completed=index % 2, ready=index)

    read = charts(120, points=6)

    assert values(read["rate"], "completed") == [3.0] * 6
    assert values(read["depth"], "ready") == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5]


def test_waits_are_weighted_by_what_was_claimed_and_the_worst_p95_shows() -> None:
    sample(0, "mail", claimed=9, wait_p50=1.0, wait_p95=5.0)
    sample(0, "default", claimed=1, wait_p50=11.0, wait_p95=12.0)
    sample(0, "reports", ready=3, oldest=40.0)

    chart = charts(10)["wait"]

    assert values(chart, "p50") == [2.0]
    assert values(chart, "p95") == [12.0]
    assert values(chart, "still waiting") == [40.0]


def test_nothing_claimed_is_no_wait_and_not_a_short_one() -> None:
    sample(0, ready=3)

    assert values(charts(10)["wait"], "p50") == [None]


def test_leases_are_told_of_a_minute() -> None:
    sample(0, "", renewals=5, expirations=1, releases=2)
    sample(0, "default", releases=1)

    chart = charts(10)["leases"]

    assert [line.values for line in chart.lines] == [[30.0], [6.0], [18.0]]
    assert chart.greatest == 30.0
    assert chart.rows == [(START, [30.0, 6.0, 18.0])]


def test_a_day_is_read_by_one_query_into_few_points() -> None:
    sample(0, completed=1)

    with CaptureQueriesContext(connection) as queries:
        read = charts(86_400)

    assert len(queries) == 1
    assert len(read["rate"].moments) == 120
