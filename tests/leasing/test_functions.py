"""The database's clock as an expression."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler

from leasing.functions import (
    DbMicroseconds,
    DbNow,
    after,
    as_utc,
    database_now,
    remaining,
)
from leasing.models import Lease
from leasing.runtime.clock import clock
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock
from tests.processes import wait_for

pytestmark = pytest.mark.django_db


def test_the_databases_clock_is_in_utc() -> None:
    now = database_now("default")

    assert now.tzinfo is UTC
    assert abs(datetime.now(UTC) - now) < timedelta(seconds=30)


def test_the_clock_goes_on_within_a_transaction() -> None:
    make_lease()
    microseconds = Lease.objects.values_list(DbMicroseconds(), flat=True)
    before, first = microseconds.get(), database_now("default")

    assert wait_for(lambda: database_now("default") > first)
    assert microseconds.get() > before


@pytest.mark.parametrize("text", ["2030-01-01 00:00:00", "2030-01-01 00:00:00.120"])
def test_sqlite_writes_the_clock_as_django_writes_a_moment(text: str) -> None:
    """Or a row could not be found again by a moment that was read of it, one time in a thousand."""
    template, _ = DbNow().as_sqlite(SQLCompiler(Query(Lease), connection, None), connection)
    clock_at = template.replace("%%", "%").replace("'NOW'", f"'{text}'")
    with closing(sqlite3.connect(":memory:")) as database:
        ((written,),) = database.execute(f"SELECT {clock_at}")

    assert written == str(datetime.fromisoformat(text))


def test_now_and_now_plus_nothing_are_the_same_moment() -> None:
    """On SQLite moments are text: digits that are missing would make them differ."""
    make_lease()
    rows = Lease.objects.annotate(same=after(timedelta(0)))

    for _ in range(20):
        assert not rows.exclude(same=DbNow()).exists()


def test_a_moment_reads_back_as_it_was_written() -> None:
    lease = make_lease()
    Lease.objects.filter(pk=lease.pk).update(acquired_at=DbNow(), renewed_at=None)
    lease.refresh_from_db()

    assert Lease.objects.filter(acquired_at=lease.acquired_at).exists()


def test_what_remains_is_told_by_the_database(database_clock: DatabaseClock) -> None:
    make_lease(ttl=30)
    database_clock.advance(12.5)

    row: Any = Lease.objects.annotate(left=remaining()).get()
    assert row.left == timedelta(seconds=17.5)
    assert remaining("acquired_at") is not None


def test_microseconds_and_moment_are_of_one_clock() -> None:
    lease = make_lease()
    row: Any = Lease.objects.annotate(micro=DbMicroseconds(), moment=DbNow()).get()

    moment = (row.moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert row.micro == moment
    assert lease.fencing_token <= row.micro


def test_the_deadline_can_come_from_a_column(database_clock: DatabaseClock) -> None:
    make_lease(ttl=45)

    row: Any = Lease.objects.annotate(deadline=after(F("ttl"))).get()
    assert row.deadline == database_clock.now + timedelta(seconds=45)


@pytest.mark.parametrize("reported", ["2030-01-01 12:00:00.5", "2030-01-01 07:00:00.5-05:00"])
def test_the_answer_of_the_database_is_read_as_utc(reported: str) -> None:
    moment = datetime(2030, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)

    assert as_utc(reported) == moment
    assert as_utc(datetime.fromisoformat(reported)) == moment


def test_the_holders_clock_never_runs_backwards() -> None:
    moments = [clock() for _ in range(1000)]

    assert moments == sorted(moments)
