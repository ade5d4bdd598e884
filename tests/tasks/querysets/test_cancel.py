"""Cancelling: at once what waits, in two stages what runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasing.exceptions import LeaseLost
from leasing.holding.keeper import Keeper
from tasks.exceptions import TaskCancelled
from tasks.execution.context import Context
from tasks.models import Task, TaskStatus
from tasks.querysets import TaskQuerySet
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import FakeClock, expire, just_before_the_update
from tests.tasks.support import (
    Reported,
    attempt,
    attempts,
    end_well,
    grant_to,
    kept,
    names_of,
    refusals,
    row_of,
    take_back,
    take_over,
)

pytestmark = pytest.mark.django_db


def rows(*tasks: Task) -> TaskQuerySet:
    found: TaskQuerySet = Task.objects.filter(pk__in=[task.pk for task in tasks])
    return found


@pytest.mark.parametrize("state", ["ready", "scheduled", "retrying", "returned"])
def test_a_task_that_waits_is_cancelled_at_once(
    state: str, database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state=state, unique_key="once")
    reported.clear()

    assert rows(task).cancel(by="ann", reason="wrong month") == 1

    row = row_of(task)
    assert (row["status"], row["unique_key"]) == (TaskStatus.CANCELLED, None)
    assert row["processed_at"] == row["cancel_requested_at"] == database_clock.now
    assert (row["cancel_requested_by"], row["last_error"]) == (
        "ann",
        "cancelled by ann: wrong month",
    )
    assert reported == [("cancelled", task.pk, {"by": "ann", "reason": "wrong month"})]
    assert Task.objects.claim("bob") == []


def test_a_task_that_runs_is_asked_to_stop_and_goes_on_meanwhile(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="bob")
    before = row_of(task)
    reported.clear()
    asked_at = database_clock.now

    assert rows(task).cancel(by="ann") == 1
    database_clock.advance(1)
    assert rows(task).cancel(by="eve") == 0

    changed = {key: value for key, value in row_of(task).items() if value != before[key]}
    assert changed == {
        "cancel_requested_at": asked_at,
        "cancel_requested_by": "ann",
        "last_error": "cancelled by ann",
    }
    assert reported == []


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_what_has_ended_is_not_cancelled(state: str, reported: Reported) -> None:
    task = make_task(state=state)
    before = row_of(task)
    reported.clear()

    assert rows(task).cancel(by="ann") == 0
    assert row_of(task) == before
    assert reported == []


def test_only_the_tasks_that_are_meant_are_cancelled() -> None:
    ready, running, other = make_task(), make_task(state="running"), make_task()

    assert rows(ready, running).cancel() == 2

    assert row_of(other)["status"] == TaskStatus.READY
    assert row_of(ready)["last_error"] == "cancelled by an operator"


@pytest.mark.parametrize(("by", "said"), [("ann", "ann"), ("", "an operator")])
def test_a_handler_hears_of_it_with_the_next_renewal_and_at_its_next_look(
    manual_keeper: Keeper, clock: FakeClock, by: str, said: str
) -> None:
    task = make_task(state="running")
    task.sent_at = clock()
    attempt = kept(task, manual_keeper)
    context = Context(attempt)
    rows(task).cancel(by=by)
    context.ensure()
    assert not context.cancelled

    clock.advance(15)
    manual_keeper.renew_due()

    assert context.cancelled
    with pytest.raises(TaskCancelled, match=f"requested by {said}"):
        context.ensure()
    with pytest.raises(TaskCancelled):
        context.wait(60)
    assert attempt.valid
    attempt.detach()


def test_a_task_that_is_lost_while_it_is_to_be_cancelled_is_lost_for_its_own_reason(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    task = make_task(state="running")
    task.sent_at = clock()
    attempt = kept(task, manual_keeper)
    rows(task).cancel(by="ann")
    clock.advance(15)
    manual_keeper.renew_due()

    clock.advance(60)
    manual_keeper.declare_lost()

    with pytest.raises(LeaseLost, match="it was not renewed in time"):
        Context(attempt).ensure()
    attempt.detach()


def test_the_holder_of_a_task_ends_it_as_cancelled(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="bob", unique_key="once", max_attempts=1)
    rows(task).cancel(by="ann", reason="wrong month")
    reported.clear()

    answer = Task.objects.accept_cancel(task)

    assert answer is task
    assert (task.status, task.unique_key, task.attempts) == (TaskStatus.CANCELLED, None, 1)
    assert task.processed_at == task.released_at == database_clock.now
    assert attempts(task) == [(1, "cancelled")]
    assert attempt(task).error == "cancelled by ann: wrong month"
    assert [(name, details["by"]) for name, _, details in reported] == [("cancelled", "ann")]


def test_a_handler_may_end_its_task_as_cancelled_when_nobody_asked() -> None:
    task = make_task(state="running")

    Task.objects.accept_cancel(task, by="its handler")

    assert row_of(task)["status"] == TaskStatus.CANCELLED
    assert attempt(task).error == "cancelled by its handler"


@pytest.mark.parametrize("meanwhile", [take_over, take_back, end_well])
def test_who_no_longer_holds_the_task_cannot_end_it_as_cancelled(
    meanwhile: Callable[[Task], None],
) -> None:
    task = make_task(state="running")
    meanwhile(task)
    before = row_of(task)

    with pytest.raises(LeaseLost):
        Task.objects.accept_cancel(task)

    after = row_of(task)
    assert (after["status"], after["grant_id"]) == (before["status"], before["grant_id"])
    assert set(refusals(task)) <= {"cancel"}


def by_recovery(task: Task) -> object:
    expire(task)
    return Task.objects.recover()


BACK: dict[str, tuple[Callable[[Task], object], str]] = {
    "fails": (lambda task: Task.objects.fail(task, "no luck"), "failed"),
    "is given back": (lambda task: Task.objects.give_back(task, "stopped"), "returned"),
    "is recovered": (by_recovery, "lost"),
    "is recovered after its last attempt": (by_recovery, "lost"),
    "is revoked": (lambda task: rows(task).revoke(), "lost"),
}


@pytest.mark.parametrize("how", BACK)
def test_a_task_that_was_asked_to_stop_is_never_tried_again(how: str, reported: Reported) -> None:
    end, outcome = BACK[how]
    most = 1 if "last" in how else 5
    task = make_task(state="running", unique_key="once", max_attempts=most)
    rows(task).cancel(by="ann")
    reported.clear()

    end(task)

    row = row_of(task)
    assert (row["status"], row["unique_key"]) == (TaskStatus.CANCELLED, None)
    assert row["processed_at"] is not None
    assert attempts(task) == [(1, outcome)]
    assert names_of(reported)[-1] == "cancelled"
    assert not {"attempt_failed", "returned", "failed"} & set(names_of(reported))


@pytest.mark.parametrize("how", BACK)
def test_a_task_that_nobody_asked_to_stop_keeps_its_key_and_is_tried_again(how: str) -> None:
    end, _ = BACK[how]
    task = make_task(state="running", unique_key="once", max_attempts=5)

    end(task)

    row = row_of(task)
    assert (row["status"], row["unique_key"], row["processed_at"]) == ("ready", "once", None)


def test_a_cancelled_task_that_is_retried_is_cancelled_no_more() -> None:
    task = make_task()
    rows(task).cancel(by="ann")
    assert rows(task).retry(by="bob") == 1

    mine = claimed(task, "bob")

    assert (mine.cancel_requested_at, mine.cancel_requested_by) == (None, "")
    Task.objects.fail(mine, "no luck")
    assert row_of(task)["status"] == TaskStatus.READY


@pytest.mark.parametrize(("state", "meanwhile"), [("ready", "claimed"), ("running", "ended")])
def test_what_changes_between_the_lock_and_the_update_is_left_alone(
    state: str, meanwhile: str, reported: Reported
) -> None:
    """As could happen on a database without row locks."""
    task = make_task(state=state)

    def change() -> None:
        if meanwhile == "claimed":
            grant_to(task, "bob")
        else:
            end_well(task)

    with just_before_the_update(change):
        changed = rows(task).cancel(by="ann")

    assert changed == 0
    assert row_of(task)["cancel_requested_at"] is None
    assert "cancelled" not in names_of(reported)
