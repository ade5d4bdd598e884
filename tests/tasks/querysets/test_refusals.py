"""A late write: refused, noted on the attempt of its grant, and told."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from leasing.holding.keeper import Keeper
from leasing.models import LeaseEvent
from tasks.exceptions import GiveUp
from tasks.models import Task, TaskAttempt
from tasks.querysets import TaskQuerySet
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire
from tests.tasks.support import Reported, attempt, copy_of, lose, refusals, row_of

pytestmark = pytest.mark.django_db

LATE: dict[str, tuple[str, Callable[[Task], object]]] = {
    "a heartbeat": ("heartbeat", lambda task: Task.objects.heartbeat(task)),
    "a completion": ("complete", lambda task: Task.objects.complete(task, {"late": True})),
    "a failure": ("fail", lambda task: Task.objects.fail(task, "no luck")),
    "giving up": ("fail", lambda task: Task.objects.fail(task, GiveUp("no hope"))),
    "giving back": ("give back", lambda task: Task.objects.give_back(task, "again")),
}
ANY = pytest.mark.parametrize(("verb", "write"), LATE.values(), ids=LATE)


@pytest.fixture
def lost() -> Task:
    """A task as the holder has it that lost it; recovered since, and ready."""
    task = make_task(state="running", holder="ann")
    mine = copy_of(task)
    lose(task)
    return mine


@ANY
def test_after_recovery_it_is_refused_and_noted(
    verb: str, write: Callable[[Task], object], lost: Task, reported: Reported
) -> None:
    before = row_of(lost)
    start = database_now("default")
    reported.clear()

    with pytest.raises(LeaseLost, match="it was recovered and waits for another attempt"):
        write(lost)

    assert row_of(lost) == before
    record = attempt(lost)
    assert record.refused_verb == verb
    assert record.refused_at is not None
    assert start <= record.refused_at <= database_now("default")
    reason = "it was recovered and waits for another attempt"
    assert reported == [("refused", lost.pk, {"verb": verb, "reason": reason})]


@ANY
def test_while_another_works_on_it_it_is_refused_and_noted(
    verb: str, write: Callable[[Task], object], lost: Task
) -> None:
    theirs = claimed(lost, "bob")
    before = row_of(lost)

    with pytest.raises(LeaseLost, match="bob has held it since"):
        write(lost)

    assert row_of(lost) == before
    assert refusals(lost) == [verb]
    Task.objects.complete(theirs, {"by": "bob"})
    assert row_of(lost)["task_output"] == {"by": "bob"}


@ANY
def test_after_another_completed_it_it_is_refused_and_noted(
    verb: str, write: Callable[[Task], object], lost: Task
) -> None:
    Task.objects.complete(claimed(lost, "bob"), {"by": "bob"})
    before = row_of(lost)

    with pytest.raises(LeaseLost, match="bob has held it since"):
        write(lost)

    assert row_of(lost) == before
    assert refusals(lost) == [verb]


def test_after_the_last_attempt_was_lost_it_is_refused_and_noted() -> None:
    task = make_task(state="running", max_attempts=1)
    expire(task)
    Task.objects.recover()
    before = row_of(task)

    with pytest.raises(LeaseLost, match="it has already ended: failed"):
        Task.objects.complete(task)

    assert row_of(task) == before
    assert refusals(task) == ["complete"]


def test_after_its_row_was_deleted_it_is_refused() -> None:
    task = make_task(state="running")
    mine = copy_of(task)
    Task.objects.all().delete()

    with pytest.raises(LeaseLost, match="its row is gone"):
        Task.objects.complete(mine)


def test_only_the_attempt_of_its_grant_is_noted(lost: Task) -> None:
    second = copy_of(claimed(lost, "bob"))
    expire(second)
    other = make_task(state="stuck")
    Task.objects.recover()

    with pytest.raises(LeaseLost):
        Task.objects.complete(second)

    assert refusals(lost) == ["", "complete"]
    assert refusals(other) == [""]


def test_a_grant_of_another_task_is_not_mistaken(lost: Task) -> None:
    other = make_task(state="stuck")
    Task.objects.recover()
    TaskAttempt._base_manager.filter(task=other).update(grant_id=lost.grant_id)

    with pytest.raises(LeaseLost):
        Task.objects.complete(lost)

    assert (refusals(lost), refusals(other)) == (["complete"], [""])


def test_the_first_refusal_is_the_one_that_is_kept(lost: Task) -> None:
    with pytest.raises(LeaseLost):
        Task.objects.heartbeat(lost)
    first = attempt(lost)

    with pytest.raises(LeaseLost):
        Task.objects.complete(lost)

    again = attempt(lost)
    assert (again.refused_at, again.refused_verb) == (first.refused_at, "heartbeat")


def test_a_failed_attempt_can_be_late_too() -> None:
    """Two answers of one holder: the first failed the attempt, the second is refused."""
    task = make_task(state="running")
    again = copy_of(task)
    Task.objects.fail(task, "no luck")

    with pytest.raises(LeaseLost):
        Task.objects.complete(again)

    assert refusals(task) == ["complete"]


def test_tasks_keep_no_lease_events_beside_their_attempts(lost: Task) -> None:
    with pytest.raises(LeaseLost):
        Task.objects.complete(lost)

    assert not LeaseEvent.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_rollback_by_the_caller_does_not_erase_the_note(lost: Task, notes: Keeper) -> None:
    with pytest.raises(LeaseLost), transaction.atomic():
        Task.objects.complete(lost)
    assert refusals(lost) == [""]

    notes.write_notes()
    assert refusals(lost) == ["complete"]


# Before recovery came by


def test_a_write_that_comes_after_the_deadline_takes_the_task_back_to_be_noted(
    reported: Reported,
) -> None:
    task, other = make_task(state="stuck"), make_task(state="stuck")
    before = row_of(other)
    reported.clear()

    with pytest.raises(LeaseLost, match="it expired at"):
        Task.objects.heartbeat(copy_of(task))

    assert row_of(task)["status"] == "ready"
    assert refusals(task) == ["heartbeat"]
    assert row_of(other) == before
    assert [(name, key) for name, key, _ in reported] == [
        ("recovered", task.pk),
        ("refused", task.pk),
    ]


def test_a_late_write_takes_nothing_from_whoever_came_after(lost: Task) -> None:
    """Not even when that one is late too: its attempt is its own."""
    theirs = claimed(lost, "bob")
    expire(theirs)
    before = row_of(theirs)

    with pytest.raises(LeaseLost, match="bob has held it since"):
        Task.objects.complete(lost)

    assert row_of(theirs) == before
    assert refusals(lost) == ["complete"]


def test_a_write_refused_while_the_deadline_lies_ahead_takes_nothing() -> None:
    task = make_task(state="running")
    forged = copy_of(task)
    forged.grant_id = uuid.uuid4()
    before = row_of(task)

    with pytest.raises(LeaseLost):
        Task.objects.complete(forged)

    assert row_of(task) == before


def test_a_late_write_takes_its_own_row_only() -> None:
    task, other = make_task(state="stuck"), make_task(state="stuck")
    Task.objects.filter(pk=other.pk).update(grant_id=task.grant_id)
    before = row_of(other)

    with pytest.raises(LeaseLost):
        Task.objects.heartbeat(task)

    assert row_of(other) == before


def test_a_task_that_is_well_again_when_the_refusal_is_noted_is_not_taken(
    database_clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was set back, between the judgement and the note."""
    task = make_task(state="running", ttl=30)
    database_clock.advance(30)
    why_over = TaskQuerySet.why_over

    def set_back(*args: Any) -> str | None:
        reason = why_over(*args)
        database_clock.advance(-10)
        return reason

    monkeypatch.setattr(TaskQuerySet, "why_over", set_back)

    with pytest.raises(LeaseLost, match="it expired at"):
        Task.objects.heartbeat(task)

    assert row_of(task)["status"] == "running"
