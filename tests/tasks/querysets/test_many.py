"""Ending many tasks at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from leasing.exceptions import LeaseLost
from tasks.exceptions import GiveUp, InvalidOutput
from tasks.models import Task, TaskStatus
from tasks.retry import Fixed
from tests.factories import make_tasks
from tests.jobs.tasks import echo
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import just_before_the_update
from tests.tasks.support import (
    Handlers,
    Reported,
    attempts,
    copy_of,
    end_by_another,
    end_well,
    locks_and_writes,
    refusals,
    refusing,
    row_of,
    running,
    take_back,
    take_over,
)

pytestmark = pytest.mark.django_db


def end_another_way(task: Task) -> None:
    """Under the same grant."""
    end_well(task)
    Task.objects.filter(pk=task.pk).update(task_output="another")


def outputs(tasks: list[Task]) -> list[Any]:
    return [row_of(task)["task_output"] for task in tasks]


def is_as_stored(task: Task) -> bool:
    return row_of(task) == {column: getattr(task, column) for column in row_of(task)}


def test_many_are_completed_each_with_its_output(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    tasks = running(4)
    reported.clear()

    done, refused = Task.objects.complete_many(zip(tasks, [{"n": 1}, None, [2], 0], strict=True))

    assert (done, refused) == (tasks, [])
    assert outputs(tasks) == [{"n": 1}, None, [2], 0]
    assert all(is_as_stored(task) for task in tasks)
    assert {task.status for task in tasks} == {TaskStatus.SUCCEEDED}
    assert {task.processed_at for task in tasks} == {database_clock.now}
    assert reported == [("completed", task.pk, {}) for task in tasks]


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ((object(), 1), TaskStatus.RUNNING),
        ((1, object()), TaskStatus.SUCCEEDED),
        ((1, 2), TaskStatus.SUCCEEDED),
    ],
)
def test_of_two_outputs_of_a_task_the_first_counts(given: Any, status: str) -> None:
    (task,) = running(1)

    done, refused = Task.objects.complete_many([(task, output) for output in given])

    assert [*done, *(each for each, _ in refused)] == [task]
    assert row_of(task)["status"] == status
    assert outputs([task]) == [1 if done else None]


def test_an_output_of_nothing_is_stored_as_one_alone_is() -> None:
    one, *some = running(3)
    Task.objects.complete(one)

    Task.objects.complete_many([(task, None) for task in some])

    assert Task.objects.filter(task_output__isnull=True).count() == 3


def test_completions_cost_one_statement_together_and_failures_one_each() -> None:
    def cost(count: int, end: Callable[[list[Task]], object]) -> int:
        tasks = running(count)
        with CaptureQueriesContext(connection) as queries:
            end(tasks)
        return len(queries)

    assert cost(20, complete_numbered) == cost(1, complete_numbered) <= 5
    assert cost(20, ENDS["fail"]) == cost(1, ENDS["fail"]) + 19 <= 25


def complete_numbered(tasks: list[Task]) -> None:
    Task.objects.complete_many([(task, {"n": number}) for number, task in enumerate(tasks)])


def test_nothing_is_nothing() -> None:
    assert Task.objects.complete_many([]) == ([], [])
    assert Task.objects.fail_many([]) == ([], [])


#: What stores the ends of many: of instances, and of what a worker took.
ENDS: dict[str, Callable[[list[Any]], object]] = {
    "complete": lambda tasks: Task.objects.complete_many([(each, None) for each in tasks]),
    "fail": lambda tasks: Task.objects.fail_many([(each, "no luck") for each in tasks]),
    "give back": lambda tasks: Task.objects.give_back_many(tasks, "no paper"),
    "complete claimed": lambda claimed: Task.objects.complete_claimed([(c, None) for c in claimed]),
    "release claimed": lambda claimed: Task.objects.release_unstarted(claimed, "no paper"),
}


@pytest.mark.usefixtures("on_postgresql", "unheard")
@pytest.mark.parametrize("end", ENDS)
def test_rows_are_locked_in_the_order_of_their_keys(end: str) -> None:
    """Two that end the same tasks could wait for each other."""
    make_tasks(2)
    claimed = Task.objects.take("ann", limit=2)[::-1]

    with locks_and_writes() as steps:
        ENDS[end](claimed if "claimed" in end else [each.task for each in claimed])

    assert (steps[0], steps.count("lock")) == ("lock in order", 0)
    assert not Task.objects.running().exists()


def test_what_cannot_be_taken_sinks_no_neighbour(reported: Reported) -> None:
    good, other, bad, sold = running(4)
    take_over(copy_of(sold))
    reported.clear()

    done, refused = Task.objects.complete_many(
        [(sold, 1), (bad, object()), (good, "well"), (other, "well")]
    )

    assert done == [good, other]
    assert {task: type(error) for task, error in refused} == {sold: LeaseLost, bad: InvalidOutput}
    assert outputs([good, other, bad, sold]) == ["well", "well", None, None]
    assert row_of(bad)["status"] == TaskStatus.RUNNING
    assert [name for name, _, _ in reported] == ["completed", "completed", "refused"]


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("end", [take_over, end_well])
def test_what_is_refused_of_many_is_not_tried_again(end: Callable[[Task], object]) -> None:
    tasks = running(2)
    for task in tasks:
        end(copy_of(task))

    with CaptureQueriesContext(connection) as queries:
        _, refused = Task.objects.complete_many([(task, None) for task in tasks])

    assert [task for task, _ in refused] == tasks
    locks = [each["sql"] for each in queries if "FOR NO KEY UPDATE" in each["sql"]]
    assert sum("last_error" in lock for lock in locks) == 1


def test_an_output_that_only_the_database_refuses_sinks_no_neighbour() -> None:
    good, bad = running(2)

    def refuses(sql: str, params: Any) -> bool:
        return "task_output" in sql and "poison" in str(params)

    with refusing(DataError("too large a number"), refuses):
        done, refused = Task.objects.complete_many([(bad, "poison"), (good, 2)])

    assert done == [good]
    assert [(task, str(error)) for task, error in refused] == [(bad, "too large a number")]


def test_a_database_that_is_away_is_no_refusal() -> None:
    (task,) = running(1)
    away = OperationalError("the database is away")

    with pytest.raises(OperationalError), refusing(away, lambda sql, _: "SAVEPOINT" not in sql):
        Task.objects.complete_many([(task, 1)])


def test_of_a_task_named_twice_the_first_counts() -> None:
    (task,) = running(1)
    twin = copy_of(task)

    done, refused = Task.objects.complete_many([(task, "first"), (twin, "second")])

    assert [each is task for each in done] == [True]
    assert [each is twin for each, _ in refused] == [True]
    assert outputs([task]) == ["first"]


def test_grants_that_are_mixed_up_are_no_grants() -> None:
    one, other = running(2)
    mixed = copy_of(one), copy_of(other)
    mixed[0].grant_id, mixed[1].grant_id = other.grant_id, one.grant_id

    done, refused = Task.objects.complete_many([(task, 1) for task in mixed])

    assert (done, len(refused)) == ([], 2)
    assert Task.objects.running().count() == 2


@pytest.mark.parametrize(
    "change",
    [
        end_by_another,
        take_back,
        end_another_way,
        lambda task: Task.objects.fail(task, "no luck"),
        lambda task: Task.objects.filter(pk=task.pk).delete(),
    ],
    ids=["by another", "taken back", "another way", "failed", "gone"],
)
def test_completions_of_which_one_has_changed_are_not_believed(
    change: Callable[[Task], object],
) -> None:
    """As could be without row locks: each is stored alone. Here what came is undone with the rest
    of the transaction."""
    task, neighbour = running(2)

    with just_before_the_update(lambda: change(copy_of(task))):
        done, refused = Task.objects.complete_many([(task, None), (neighbour, "well")])

    assert (done, refused) == ([task, neighbour], [])
    assert outputs([task, neighbour]) == [None, "well"]
    assert Task.objects.succeeded().count() == 2


@pytest.mark.parametrize(
    "change",
    [Task.objects.complete, lambda task: Task.objects.fail(task, "another")],
    ids=["completed", "failed otherwise"],
)
def test_a_failure_that_another_end_forestalled_is_refused(
    change: Callable[[Task], object],
) -> None:
    """The text that the row had from an attempt before says nothing of this one."""
    task, neighbour = running(2)
    Task.objects.filter(pk=task.pk).update(last_error="no luck")

    with just_before_the_update(lambda: change(copy_of(task))):
        done, refused = Task.objects.fail_many([(task, "no luck"), (neighbour, "no luck")])

    assert (done, [each for each, _ in refused]) == ([neighbour], [task])


def test_a_failure_without_a_pause_keeps_its_place_in_the_queue(
    database_clock: DatabaseClock, handlers: Handlers
) -> None:
    handlers.add("jobs.echo", echo, retry=Fixed(0))
    handlers.add("jobs.later", echo, retry=Fixed(60))
    now, later = *running(1, name="jobs.echo"), *running(1, name="jobs.later")
    place = now.scheduled_at
    database_clock.advance(5)

    Task.objects.fail_many([(now, "no luck"), (later, "no luck")])

    assert now.scheduled_at == place
    assert later.scheduled_at == database_clock.now + timedelta(seconds=60)


def test_an_attempt_that_is_not_traced_leaves_the_trace_of_its_task() -> None:
    tasks = running(2)
    Task.objects.update(trace_context="00-1-2-01")

    Task.objects.give_back_many(tasks, "stopped")

    assert {row_of(task)["trace_context"] for task in tasks} == {"00-1-2-01"}


def test_many_fail_each_in_its_own_way(
    handlers: Handlers, database_clock: DatabaseClock, reported: Reported
) -> None:
    handlers.add("jobs.echo", echo, retry=Fixed(60))
    again, given_up, last = running(3, name="jobs.echo")
    Task.objects.filter(pk=last.pk).update(max_attempts=1)
    reported.clear()

    done, refused = Task.objects.fail_many(
        [(again, ValueError("no luck")), (given_up, GiveUp("no hope")), (last, "HTTP 502")]
    )

    assert (done, refused) == ([again, given_up, last], [])
    assert [task.status for task in done] == ["ready", "failed", "failed"]
    assert all(is_as_stored(task) for task in done)
    assert again.scheduled_at == database_clock.now + timedelta(seconds=60)
    assert [attempts(task) for task in done] == [[(1, "failed")]] * 3
    assert reported == [
        ("attempt_failed", again.pk, {"error": "ValueError: no luck"}),
        ("failed", given_up.pk, {"error": "GiveUp: no hope"}),
        ("failed", last.pk, {"error": "HTTP 502"}),
    ]


def test_each_failure_costs_one_statement_more() -> None:
    def cost(count: int) -> int:
        tasks = running(count)
        errors: list[Exception | str] = [GiveUp("no hope"), ValueError("no luck"), "HTTP 502"]
        with CaptureQueriesContext(connection) as queries:
            Task.objects.fail_many([(task, errors[n % 3]) for n, task in enumerate(tasks)])
        return len(queries)

    # Beside one for each: the savepoint and its end, locks, what became of them, their attempts.
    assert cost(30) - 30 == cost(3) - 3 <= 5


def test_policies_are_asked_before_anything_is_locked(handlers: Handlers) -> None:
    blocks: list[int] = []

    def policy(error: BaseException, attempt: int) -> float:
        blocks.append(len(connection.atomic_blocks))
        return 1.0

    handlers.add("jobs.echo", echo, retry=policy)
    outside = len(connection.atomic_blocks)

    Task.objects.fail_many([(task, "no luck") for task in running(2, name="jobs.echo")])

    assert blocks == [outside] * 2


def test_of_many_that_fail_those_that_someone_asked_to_cancel_are_cancelled(
    reported: Reported,
) -> None:
    asked, other, sold = running(3)
    Task.objects.filter(pk=asked.pk).cancel(by="olga")
    take_over(copy_of(sold))
    reported.clear()

    done, refused = Task.objects.fail_many([(asked, "a"), (other, "b"), (sold, "c")])

    assert done == [asked, other] and [task for task, _ in refused] == [sold]
    assert [(task.status, task.last_error) for task in done] == [("cancelled", "a"), ("ready", "b")]
    assert all(is_as_stored(task) for task in done)
    assert [attempts(task) for task in done] == [[(1, "failed")]] * 2
    assert [name for name, _, _ in reported] == ["cancelled", "attempt_failed", "refused"]


@pytest.mark.parametrize("verb", ["complete_many", "fail_many"])
def test_a_late_result_among_many_is_noted_on_its_attempt(verb: str) -> None:
    late, good = running(2)
    Task.objects.filter(pk=late.pk).revoke()

    done, ((refused, error),) = getattr(Task.objects, verb)([(late, "x"), (good, "y")])

    assert (done, refused) == ([good], late)
    assert isinstance(error, LeaseLost)
    assert refusals(late) == [verb.removesuffix("_many")]
