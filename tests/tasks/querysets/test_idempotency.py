"""Enqueues that may be sent again, those that come after a commit, and what they cost."""

from __future__ import annotations

import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from leasing.exceptions import InvalidResource, PayloadMismatch
from tasks import handler
from tasks.exceptions import NotSerializable, UnknownQueue, UnknownTask
from tasks.models import Task
from tasks.payload import is_same_json
from tests.factories import make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, expire
from tests.limits import Limits
from tests.tasks.support import Reported, before_a_statement_with, row_of

pytestmark = pytest.mark.django_db

ECHO = "jobs.echo"
DATA = {"n": 1}


def send(data: Any = DATA, **options: Any) -> Task:
    return Task.objects.enqueue(ECHO, data, idempotency_key="i", **options)


# Idempotency keys


@pytest.mark.parametrize("state", ["ready", "running", "succeeded", "failed", "retrying"])
def test_the_same_enqueue_again_is_the_same_task_ended_or_not(
    state: str, reported: Reported
) -> None:
    task = make_task(name=ECHO, data=DATA, idempotency_key="i", state=state)
    before = row_of(task)
    reported.clear()

    present = send(priority=9)

    assert present.pk == task.pk and present.is_duplicate
    assert row_of(task) == before
    assert reported == []


@pytest.mark.parametrize(
    ("name", "data"), [(ECHO, {"n": 2}), (ECHO, None), (ECHO, {"n": True}), ("jobs.new", DATA)]
)
def test_the_same_key_for_something_else_is_refused(name: str, data: Any) -> None:
    task = send()
    before = row_of(task)

    with pytest.raises(PayloadMismatch, match="i was already used with a different payload"):
        Task.objects.enqueue(name, data, idempotency_key="i")

    assert row_of(task) == before
    assert Task.objects.count() == 1


def test_both_kinds_of_key_go_together() -> None:
    first = send(unique_key="u")
    assert send(unique_key="u").pk == first.pk
    assert row_of(first)["duplicates"] == 0

    other = Task.objects.enqueue(ECHO, DATA, idempotency_key="j", unique_key="u")
    assert other.pk == first.pk
    assert row_of(first)["duplicates"] == 1


@pytest.mark.parametrize(
    "data",
    [
        {"a": (1, [2, {"b": None}]), "c": 1e23, "d": 1.0, "e": -0.0, "f": 10**300, "g": 5e-324},
        {"x": 2**63, "y": [True, False], "z": "\u2028 🙂"},
    ],
)
def test_what_the_database_makes_of_the_data_is_the_same_data(data: Any) -> None:
    assert send(data).pk == send(data).pk


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        (1, True),
        (False, 0),
        ("1", 1),
        (None, False),
        ([1], [1, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": [1]}, {"a": [2]}),
        ({}, []),
        (2**63, 2**63 + 1),
        (10**400, 1e300),
    ],
)
def test_other_data_is_other_data(stored: Any, value: Any) -> None:
    assert not is_same_json(stored, value)
    assert not is_same_json(value, stored)


def test_data_is_compared_as_it_is_stored() -> None:
    first = send({"id": UUID(int=7), "by": {1: Decimal("3.10")}})

    assert send({"id": UUID(int=7), "by": {1: Decimal("3.10")}}).pk == first.pk
    assert send({"id": str(UUID(int=7)), "by": {"1": "3.10"}}).pk == first.pk
    with pytest.raises(PayloadMismatch):
        send({"id": UUID(int=8), "by": {1: Decimal("3.10")}})
    with pytest.raises(PayloadMismatch):
        send({"id": UUID(int=7), "by": {1: Decimal("3.1")}})


def test_a_task_that_is_pruned_meanwhile_is_stored_anew() -> None:
    """And no task without a unique key is taken for the one that was in the way."""
    make_task()
    first = send()

    with before_a_statement_with('"idempotency_key" = ', Task.objects.filter(pk=first.pk).delete):
        second = send()

    assert not second.is_duplicate
    assert row_of(second)["idempotency_key"] == "i"


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", " a", 7])
def test_a_key_that_is_no_name_is_refused(key: Any) -> None:
    with pytest.raises(InvalidResource, match="idempotency key"):
        Task.objects.enqueue(ECHO, idempotency_key=key)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("key", ["idempotency_key", "unique_key"])
def test_many_who_enqueue_the_same_at_once_get_the_same_task(key: str) -> None:
    options: dict[str, Any] = {key: "k"}
    together = threading.Barrier(8)
    got: list[int] = []

    def enqueue() -> None:
        try:
            together.wait(10)
            got.append(Task.objects.enqueue(ECHO, DATA, **options).pk)
        finally:
            connection.close()

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(got) == 8 and len(set(got)) == 1
    task = Task.objects.get()
    assert (task.pk, task.duplicates) == (got[0], 7 if key == "unique_key" else 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_of_two_waits_for_what_becomes_of_the_first(
    other_session: OtherSession, commits: bool
) -> None:
    with transaction.atomic():
        send()
        theirs = other_session.start(send)
        transaction.set_rollback(not commits)

    answer = theirs.result(20)
    assert answer.pk == Task.objects.get().pk
    assert answer.is_duplicate == commits


# After the commit


@pytest.mark.django_db(transaction=True)
def test_a_task_for_after_the_commit_is_stored_then(
    reported: Reported, database_clock: DatabaseClock
) -> None:
    data = {"n": [1]}
    with transaction.atomic():
        Task.objects.enqueue_on_commit(ECHO, data, delay=5, priority=3)
        data["n"].append(2)
        database_clock.advance(7)
        assert not Task.objects.exists()

    task = Task.objects.get()
    assert (task.name, task.task_data, task.priority) == (ECHO, {"n": [1]}, 3)
    assert task.scheduled_at == database_clock.now + timedelta(seconds=5)
    assert reported == [("enqueued", task.pk, {})]


@pytest.mark.django_db(transaction=True)
def test_a_rollback_leaves_nothing_for_after_the_commit() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Task.objects.enqueue_on_commit(ECHO)
        raise ZeroDivisionError

    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_outside_of_a_transaction_it_is_stored_at_once() -> None:
    Task.objects.enqueue_on_commit(ECHO, unique_key="k")
    Task.objects.enqueue_on_commit(ECHO, DATA, unique_key="k", on_duplicate="replace")

    assert Task.objects.get().task_data == DATA


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (UnknownTask, {"name_or_handler": "no.such"}),
        (UnknownQueue, {"queue": "nowhere"}),
        (NotSerializable, {"data": {"x": {1}}}),
        (ValueError, {"on_duplicate": "merge", "unique_key": "k"}),
        (TypeError, {"colour": "red"}),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_before_the_commit(error: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(error):
        Task.objects.enqueue_on_commit(**{"name_or_handler": ECHO, **arguments})


# Arguments and costs


def test_a_plain_enqueue_is_one_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        task = Task.objects.enqueue(ECHO, DATA, delay=5)
    assert task.created_at < task.scheduled_at == row_of(task)["scheduled_at"]


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_counts_by_the_clock_of_the_database(
    delay: Any, database_clock: DatabaseClock
) -> None:
    ninety = database_clock.now + timedelta(seconds=90)

    assert Task.objects.enqueue(ECHO, delay=delay).scheduled_at == ninety
    many = Task.objects.enqueue_many(ECHO, [{}] * 3, delay=delay)
    assert [task.scheduled_at for task in many] == [ninety] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": "1"},
        {"delay": True},
        {"timeout": 0},
        {"timeout": -1},
        {"progress_timeout": 0},
        {"concurrency_limit": 1},
        {"concurrency_limit": 0, "concurrency_key": "k"},
        {"concurrency_limit": 32_768, "concurrency_key": "k"},
        {"concurrency_key": " k"},
    ],
    ids=str,
)
def test_numbers_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Task.objects.enqueue(ECHO, **options)


def test_a_moment_and_a_delay_exclude_each_other(database_clock: DatabaseClock) -> None:
    with pytest.raises(ValueError, match="not both"):
        Task.objects.enqueue(ECHO, delay=1, scheduled_at=database_clock.now)


@pytest.mark.usefixtures("handlers")
def test_a_handler_declares_what_its_tasks_begin_with() -> None:
    @handler(
        "bill",
        timeout=5,
        progress_timeout=2,
        concurrency_key="account:{account[id]}",
        concurrency_limit=3,
    )
    def bill(ctx: Any, **data: Any) -> None: ...

    data = {"account": {"id": 7}}

    def begin(**options: Any) -> tuple[Any, ...]:
        (many,) = Task.objects.enqueue_many(bill, [data], **options)
        one = Task.objects.enqueue(bill, data, **options)
        columns = ("timeout", "progress_timeout", "concurrency_key", "concurrency_limit")
        assert [row_of(one)[name] for name in columns] == [row_of(many)[name] for name in columns]
        return tuple(row_of(one)[name] for name in columns)

    two, five = timedelta(seconds=2), timedelta(seconds=5)
    assert begin() == (five, two, "account:7", 3)
    assert begin(timeout=2, progress_timeout=5) == (two, five, "account:7", 3)
    assert begin(concurrency_limit=1) == (five, two, "account:7", 1)
    assert begin(concurrency_key="{x}") == (five, two, "{x}", 3)
    assert begin(concurrency_key="") == (five, two, "", None)
    misfits: list[dict[str, Any]] = [{}, {"account": {}}, {"account": 7}, {"account": {"id": " "}}]
    for misfit in misfits:
        with pytest.raises(ValueError):
            Task.objects.enqueue(bill, misfit)


@pytest.mark.usefixtures("handlers", "queues")
def test_many_differ_in_their_data_and_what_follows_from_it(
    limits: Limits, database_clock: DatabaseClock
) -> None:
    @handler("bill", queue="mail", concurrency_key="{account}")
    def bill(ctx: Any, **data: Any) -> None: ...

    limits(insert_batch=2)
    odd = "' \" \\ \n , {} NULL \u2028 🙂"
    data = [{"account": n, "odd": odd} for n in ("a", "", "b", "a", "c")]

    tasks = Task.objects.enqueue_many(bill, data, priority=4, timeout=9)

    assert [task.task_data for task in tasks] == data
    assert [task.pk for task in tasks] == sorted({task.pk for task in tasks})
    for task in tasks:
        assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}
        assert (task.queue, task.priority, task.timeout) == ("mail", 4, timedelta(seconds=9))
        assert task._state.adding is False
    assert [(t.concurrency_key, t.concurrency_limit) for t in tasks] == [
        ("a", 1),
        ("", None),
        ("b", 1),
        ("a", 1),
        ("c", 1),
    ]


def test_keys_are_not_for_many() -> None:
    with pytest.raises(TypeError, match="unique_key"):
        Task.objects.enqueue_many(ECHO, [{}], unique_key="k")  # type: ignore[call-arg]


def test_recovery_is_no_second_enqueue(db: None) -> None:
    task = make_task(name=ECHO, data=DATA, idempotency_key="i", state="running")
    expire(task)
    Task.objects.recover()

    assert send().pk == task.pk
