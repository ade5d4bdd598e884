"""Cursors that stay with their connection."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from typing import Any

import pytest
from django.db import DatabaseError, DataError, connections, transaction
from django.test.utils import CaptureQueriesContext

from leasing.db import statements
from leasing.db.statements import LONG_VALUE, MAX_CURSORS, fetch_all
from leasing.models import Lease
from tasks.models import Task

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("on_postgresql")]


@pytest.fixture
def connection() -> Any:
    """The connection of the test, without cursors, and as it was made: after a ``SimpleTestCase``
    Django leaves it with methods of its own."""
    connection = connections["default"]
    for name in (statements.ATTRIBUTE, "cursor"):
        connection.__dict__.pop(name, None)
    return connection


def kept(connection: Any) -> dict[str, Any]:
    *_, cursors = connection.__dict__[statements.ATTRIBUTE]
    return dict(cursors)


def test_a_statement_has_the_cursor_that_it_had_before(connection: Any) -> None:
    assert fetch_all(connection, "SELECT %s::int", [1]) == [(1,)]
    (first,) = kept(connection).values()

    assert fetch_all(connection, "SELECT %s::int", [2]) == [(2,)]
    assert kept(connection) == {"SELECT %s::int": first}


def test_what_wraps_a_statement_may_send_the_same(connection: Any) -> None:
    inner: list[Any] = []

    def wrapper(execute: Any, *args: Any) -> Any:
        result = execute(*args)
        if not inner:
            inner.append("begun")
            inner.append(fetch_all(connection, "SELECT %s::int", [1]))
        return result

    with connection.execute_wrapper(wrapper):
        assert fetch_all(connection, "SELECT %s::int", [7]) == [(7,)]
    assert inner == ["begun", [(1,)]]


def test_a_statement_that_failed_leaves_no_cursor(connection: Any) -> None:
    fetch_all(connection, "SELECT 1 / %s::int", [1])
    with pytest.raises(DataError), transaction.atomic():
        fetch_all(connection, "SELECT 1 / %s::int", [0])

    assert kept(connection) == {}


def test_a_cursor_that_is_kept_has_given_its_answer_back(connection: Any) -> None:
    many = "SELECT generate_series(1, %s::int)"
    assert len(fetch_all(connection, many, [1_000])) == 1_000
    (cursor,) = kept(connection).values()
    assert cursor.pgresult.ntuples == 0

    assert fetch_all(connection, many, [2]) == [(1,), (2,)]
    assert kept(connection) == {many: cursor}


@pytest.mark.parametrize(("more", "stays"), [(0, True), (1, False)])
def test_no_cursor_keeps_a_long_value_that_it_sent(connection: Any, more: int, stays: bool) -> None:
    def text(around: Any) -> str:
        return "x" * (LONG_VALUE - len(json.dumps(around)) + more)

    task = Task.objects.enqueue("jobs.echo", {"text": text({"text": ""})})
    output = text([""])
    Task.objects.complete_claimed([(each, output) for each in Task.objects.take("ann")])

    assert Task.objects.get(pk=task.pk).task_output == output
    for verb in ("INSERT INTO leasing_tasks_task", "task_output = "):
        assert any(verb in sent for sent in kept(connection)) is stays


def test_cursors_are_few(connection: Any) -> None:
    for number in range(MAX_CURSORS + 1):
        fetch_all(connection, f"SELECT {number}", [])
    assert len(kept(connection)) == MAX_CURSORS


def test_texts_that_follow_one_another_share_a_cursor(connection: Any) -> None:
    for number in (1, 2):
        found = fetch_all(connection, f"SELECT {number}, %(n)s::int", {"n": 7}, known_as="number")
        assert found == [(number, 7)]

    assert list(kept(connection)) == ["number"]


def test_queries_are_logged_for_those_who_ask(connection: Any) -> None:
    Lease.objects.release(Lease.objects.acquire("crane"))
    with CaptureQueriesContext(connection) as queries:
        Lease.objects.release(Lease.objects.acquire("crane"))

    assert len(queries) == 2


def test_a_tool_that_replaces_the_cursors_of_a_connection_sees_each(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    plain = connection.cursor

    def cursor() -> Any:
        made.append(plain())
        return made[-1]

    Lease.objects.release(Lease.objects.acquire("crane"))
    # Not `setattr`: that undoes it by a bound method, which is a replacement too.
    monkeypatch.setitem(connection.__dict__, "cursor", cursor)
    Lease.objects.release(Lease.objects.acquire("crane"))

    assert len(made) == 2


@pytest.mark.django_db(transaction=True)
def test_another_connection_has_cursors_of_its_own(connection: Any) -> None:
    lease = Lease.objects.acquire("crane")
    before = kept(connection)
    connection.close()

    Lease.objects.release(lease)
    again = Lease.objects.acquire("crane")

    assert again.grants == 2
    assert not set(before.values()) & set(kept(connection).values())


def test_another_thread_does_not_use_the_connection(connection: Any) -> None:
    fetch_all(connection, "SELECT 1", [])
    with ThreadPoolExecutor() as threads:
        error = threads.submit(fetch_all, connection, "SELECT 1", []).exception()

    assert isinstance(error, DatabaseError) and "same thread" in str(error)


def test_moments_are_those_of_django(connection: Any) -> None:
    sql = "SELECT '2030-01-02 03:04:05.678901+02'::timestamptz, NULL::timestamptz"
    ((moment, nothing),) = fetch_all(connection, sql, [])
    with connection.cursor() as cursor:
        cursor.execute(sql)
        assert cursor.fetchall() == [(moment, nothing)]

    assert (moment.tzinfo, nothing) == (UTC, None)
