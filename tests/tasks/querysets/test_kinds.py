"""The kind of its handler in a task's row, and claims by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tasks.models import Queue, Task
from tasks.querysets.claimed import ClaimedTask, Taken
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.registry import Kind
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession
from tests.tasks.support import Handlers, row_of

pytestmark = pytest.mark.django_db

THREAD, COROUTINE, PROCESS = (kind.number for kind in Kind)


async def fetch(ctx: Any, **data: Any) -> None: ...


def draw(ctx: Any, **data: Any) -> None: ...


@pytest.fixture(autouse=True)
def known(handlers: Handlers) -> None:
    handlers["jobs.fetch"] = fetch
    handlers.add("jobs.draw", draw, process=True)


def in_order(*kinds: int, **options: Any) -> list[int]:
    """Store a task of each of ``kinds``, and return their keys."""
    return [make_task(kind=kind, **options).pk for kind in kinds]


def take(limit: int, *kinds: int, **options: Any) -> Taken:
    return Task.objects.take("ann", limit=limit, kinds=kinds, **options)


def keys(claimed: Iterable[ClaimedTask]) -> list[int]:
    return sorted(each.id for each in claimed)


# Enqueuing


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda name: Task.objects.enqueue(name),
        lambda name: Task.objects.enqueue_many(name, [{}, {}])[1],
        lambda name: Task.objects.enqueue_many(name, [{}], concurrency_key="a")[0],
        lambda name: Task.objects.enqueue(name, unique_key="a"),
        lambda name: Task.objects.enqueue(name, idempotency_key="a"),
    ],
    ids=["alone", "many", "many with a key", "unique", "idempotent"],
)
@pytest.mark.parametrize(
    ("name", "kind"), [("jobs.echo", THREAD), ("jobs.fetch", COROUTINE), ("jobs.draw", PROCESS)]
)
def test_a_task_has_the_kind_of_its_handler(
    enqueue: Callable[[str], Task], name: str, kind: int
) -> None:
    task = enqueue(name)

    assert task.kind == row_of(task)["kind"] == kind


def test_a_task_that_is_replaced_by_one_of_another_handler_has_its_kind() -> None:
    task = Task.objects.enqueue("jobs.echo", unique_key="a")
    Task.objects.enqueue("jobs.fetch", unique_key="a", on_duplicate="replace")

    assert row_of(task)["kind"] == COROUTINE


@pytest.mark.parametrize("again", [Task.objects.give_back, Task.objects.fail])
def test_a_task_that_waits_again_has_the_kind_that_its_handler_has_by_now(
    again: Callable[..., Any],
) -> None:
    moved = make_task(name="jobs.fetch", kind=THREAD, state="running")
    unknown = make_task(kind=PROCESS, state="running")
    Task.objects.filter(pk=unknown.pk).update(name="jobs.gone")
    unknown.name = "jobs.gone"

    for task in (moved, unknown):
        again(task, "again")

    assert [row_of(task)["kind"] for task in (moved, unknown)] == [COROUTINE, PROCESS]


@pytest.mark.parametrize(
    ("state", "again"),
    [
        ("failed", lambda: Task.objects.retry()),
        ("ready", lambda: Task.objects.reschedule(queue="default")),
    ],
    ids=["retry", "reschedule"],
)
def test_a_task_that_an_operator_sets_ready_has_the_kind_that_its_handler_has_by_now(
    state: str, again: Callable[[], int]
) -> None:
    moved, back, unknown = make_tasks(3, state=state)
    Task.objects.filter(pk=moved.pk).update(name="jobs.fetch")
    Task.objects.filter(pk=back.pk).update(name="jobs.echo", kind=PROCESS)
    Task.objects.filter(pk=unknown.pk).update(name="jobs.gone", kind=PROCESS)

    assert again() == 3

    kinds = [row_of(task)["kind"] for task in (moved, back, unknown)]
    assert kinds == [COROUTINE, THREAD, PROCESS]


# Claims of every kind


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("limit", [1, 2, 4, 9])
def test_a_claim_keeps_the_order_of_all_kinds_together(
    limit: int, database_clock: DatabaseClock
) -> None:
    def store(kind: int, priority: int, seconds_ago: int = 0) -> int:
        moment = database_clock.now - timedelta(seconds=seconds_ago)
        return in_order(kind, priority=priority, scheduled_at=moment)[0]

    last = store(COROUTINE, -1, 99)
    fourth, fifth = store(COROUTINE, 0, 5), store(THREAD, 0, 5)
    first = store(COROUTINE, 9)
    third = store(THREAD, 0, 8)
    second = store(PROCESS, 3)
    expected = [first, second, third, fourth, fifth, last]

    claimed: list[list[int]] = []
    while found := [task.pk for task in Task.objects.claim("ann", limit=limit)]:
        claimed.append(found)

    assert claimed == [expected[n : n + limit] for n in range(0, len(expected), limit)]


@pytest.mark.usefixtures("form", "queues")
def test_a_claim_takes_one_queue_after_the_other_whatever_their_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "shuffle", lambda names: None)
    mails = in_order(COROUTINE, THREAD, queue="mail")
    reports = in_order(THREAD, PROCESS, queue="reports", priority=9)

    found = [task.pk for task in Task.objects.claim("ann", queues=["mail", "reports"], limit=3)]

    assert sorted(found) == [*mails, reports[0]]


@pytest.mark.usefixtures("form")
def test_a_claim_of_a_part_of_the_tasks_takes_those_of_every_kind() -> None:
    mine = [
        *in_order(COROUTINE, name="jobs.fetch", data={}),
        *in_order(THREAD, PROCESS, name="jobs.draw", data={}),
    ]
    in_order(THREAD, COROUTINE, PROCESS, priority=9)

    rows = Task.objects.filter(name__in=["jobs.fetch", "jobs.draw"])

    assert [task.pk for task in rows.claim("ann", limit=9)] == mine
    assert rows.claim("ann") == []


@pytest.mark.usefixtures("form")
def test_what_has_no_seat_leaves_its_place_to_tasks_of_another_kind() -> None:
    first, full = (
        Task.objects.enqueue("jobs.echo", concurrency_key="a", priority=9).pk for _ in range(2)
    )
    free = in_order(COROUTINE, COROUTINE)

    found = [task.pk for task in Task.objects.claim("ann", limit=3)]

    assert found == [first, *free]
    assert row_of(Task.objects.get(pk=full))["status"] == "ready"


@pytest.mark.usefixtures("form")
def test_a_claim_ends_where_no_kind_has_a_seat_left() -> None:
    first, *_ = in_order(THREAD, THREAD, COROUTINE, PROCESS, concurrency_key="a")

    assert [task.pk for task in Task.objects.claim("ann", limit=9)] == [first]


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_claim_takes_others_for_those_that_somebody_has_locked(
    other_session: OtherSession,
) -> None:
    locked, second, third = in_order(COROUTINE, THREAD, PROCESS)
    other_session.begin()
    other_session.run(lambda: Task.objects.select_for_update().get(pk=locked))

    assert [task.pk for task in Task.objects.claim("ann", limit=2)] == [second, third]

    other_session.commit()


@pytest.mark.usefixtures("on_postgresql", "queues")
def test_a_claim_of_fewer_tasks_than_it_has_room_for_is_one_statement_beside_other_queues() -> None:
    mine = in_order(COROUTINE, THREAD, queue="mail")
    in_order(COROUTINE, THREAD, queue="reports", priority=9)

    with CaptureQueriesContext(connection) as queries:
        claimed = Task.objects.claim("ann", queues=["mail"], limit=3)

    assert ([task.pk for task in claimed], len(queries)) == (mine, 1)


# Claims for slots of a kind


@pytest.mark.usefixtures("form", "unheard")
def test_each_kind_is_taken_as_far_as_there_is_room_for_it() -> None:
    first, second, third = in_order(THREAD, THREAD, THREAD)
    coroutine, process, _ = in_order(COROUTINE, PROCESS, COROUTINE)

    taken = take(2, THREAD), take(1, COROUTINE), take(5, 9)
    assert [keys(each) for each in taken] == [[first, second], [coroutine], []]
    assert [each.has_more for each in taken] == [True, True, False]
    assert (take(0, THREAD), take(0, THREAD).has_more) == ([], False)
    assert keys(take(2, PROCESS, THREAD)) == [third, process]


@pytest.mark.usefixtures("on_postgresql", "unheard")
def test_a_kind_that_ran_out_is_looked_for_from_the_beginning_and_no_other() -> None:
    cursor = ClaimCursor(lasts=3600.0)
    threads, coroutines = in_order(*[THREAD] * 5), in_order(*[COROUTINE] * 3)

    def taken(limit: int, kind: int) -> list[int]:
        return keys(take(limit, kind, cursor=cursor))

    assert (taken(2, THREAD), taken(2, COROUTINE)) == (threads[:2], coroutines[:2])
    (high,) = in_order(THREAD, priority=1)
    (higher,) = in_order(COROUTINE, priority=1)

    with CaptureQueriesContext(connection) as queries:
        assert taken(2, THREAD) == threads[2:4]
    assert len(queries) == 1
    with CaptureQueriesContext(connection) as queries:
        assert taken(2, COROUTINE) == [coroutines[2], higher]
    assert len(queries) == 2
    assert taken(1, COROUTINE) == []
    assert taken(2, THREAD) == [threads[4], high]


@pytest.mark.usefixtures("form", "unheard")
def test_only_a_first_attempt_that_is_not_the_last_is_taken_to_wait_for_a_slot() -> None:
    once = make_tasks(2, max_attempts=1)
    tried = make_task(state="running")
    Task.objects.give_back(tried, "again")
    Task.objects.filter(pk=tried.pk).update(attempts=1)
    fresh = make_tasks(3, max_attempts=2)

    first, second, *rest = sorted([*once, tried, *fresh], key=lambda t: (t.scheduled_at, t.pk))
    expected = [first, second, *(task for task in rest if task in fresh)]
    taken = take(9, THREAD, free=2)
    assert keys(taken) == sorted(task.pk for task in expected)
    assert taken.has_more

    for free in (0, 1):
        taken = take(9, THREAD, free=free)
        assert (len(taken), taken.has_more) == (free, not free)


@pytest.mark.usefixtures("form", "unheard")
def test_a_task_without_a_seat_takes_no_free_slot_from_others() -> None:
    for _ in range(3):
        Task.objects.enqueue("jobs.echo", concurrency_key="a", priority=9)
    (once,) = in_order(THREAD, max_attempts=1)
    assert len(take(1, THREAD)) == 1

    assert keys(take(4, THREAD, free=1)) == [once]


@pytest.mark.usefixtures("on_postgresql", "unheard")
def test_what_was_passed_over_further_on_is_not_looked_for_from_the_beginning() -> None:
    cursor = ClaimCursor(lasts=3600.0)
    (first,) = in_order(THREAD)
    make_tasks(2, max_attempts=1)
    assert keys(take(1, THREAD, cursor=cursor)) == [first]

    with CaptureQueriesContext(connection) as queries:
        taken = take(2, THREAD, free=1, cursor=cursor)

    assert (len(taken), taken.has_more, len(queries)) == (1, True, 1)


# What a look costs


def test_a_kind_without_tasks_costs_no_look_at_the_others() -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 2000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        with CaptureQueriesContext(connection) as queries:
            assert take(9, COROUTINE, PROCESS) == []
        looks = [
            each["sql"]
            for each in queries
            if "leasing_tasks_task" in each["sql"] and "concurrency_key" in each["sql"]
        ]
        if connection.vendor == "postgresql":
            (look,) = looks
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {look}")
            ((((plan),),),) = cursor.fetchall()
            assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 40
        else:
            assert looks
            for look in looks:
                cursor.execute(f"EXPLAIN QUERY PLAN {look}")
                plans = [line for *_, line in cursor.fetchall()]
                assert any("to_claim (queue=? AND kind=?)" in line for line in plans), plans


def test_the_first_of_every_kind_are_read_by_the_index() -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 2000)
    Task.objects.enqueue_many("jobs.fetch", [{}] * 2000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")

    plan = Task.objects.all().to_claim_next("default", 10, "kind").explain()

    assert plan.count("leasing_tasks_task_to_claim") == len(Kind)
    assert "Sort  " not in plan and "TEMP B-TREE" not in plan


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("state", ["scheduled", "running", "succeeded", "cancelled"])
def test_by_its_key_a_task_is_taken_only_while_it_is_ready(state: str) -> None:
    other, one = make_task(), make_task(state=state)

    assert Task.objects.take_one(one.pk, "ann", queue="default") is None

    taken = Task.objects.take_one(other.pk, "ann", queue="default")
    assert taken is not None and taken.id == other.pk


@pytest.mark.usefixtures("form")
def test_by_its_key_one_task_is_taken_and_no_other() -> None:
    first, one = in_order(THREAD, COROUTINE)

    taken = Task.objects.take_one(one, "ann", queue="default")

    assert taken is not None and taken.id == one
    assert row_of(Task.objects.get(pk=first))["status"] == "ready"


@pytest.mark.usefixtures("form", "queues")
def test_by_its_key_a_task_is_taken_of_its_own_queue_unless_that_is_paused() -> None:
    (one,) = in_order(THREAD, queue="mail")

    assert Task.objects.take_one(one, "ann", queue="reports") is None

    Queue.objects.pause("mail")
    assert Task.objects.take_one(one, "ann", queue="mail") is None

    Queue.objects.resume("mail")
    assert Task.objects.take_one(one, "ann", queue="mail") is not None
