"""Zombies: their heartbeats arrive, and nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.urls import reverse
from pytest_django import Settings

from leasing.exceptions import LeaseLost
from leasing.holding.keeper import Keeper
from tasks.diagnosis import diagnose
from tasks.maintenance import recovery
from tasks.models import AttemptOutcome, Task, TaskStatus, Worker
from tasks.querysets import recovery as querysets_recovery
from tests.factories import claimed, make_task, make_worker
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import FakeClock, just_before_the_update
from tests.pages import get, signed_in
from tests.tasks.support import (
    ContextOf,
    Reported,
    attempt,
    attempts,
    end_well,
    grant_to,
    make_due,
    refusals,
    row_of,
    take_back,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def task(database_clock: DatabaseClock) -> Task:
    """A running task that must say something every 60 seconds, and is renewed for long."""
    task = make_task(holder="ann")
    Task.objects.filter(pk=task.pk).update(progress_timeout=timedelta(seconds=60))
    return claimed(task, "ann", ttl=3600)


def stalled() -> list[Task]:
    return list(Task.objects.stalled())


def test_a_task_is_stalled_from_its_progress_deadline_on(
    task: Task, database_clock: DatabaseClock
) -> None:
    database_clock.advance(59.999999)
    assert (stalled(), Task.objects.recover_stalled()) == ([], 0)
    assert task.stalled_for(database_clock.now) is None

    database_clock.advance(0.000001)
    assert task.stalled_for(database_clock.now) == timedelta(seconds=60)
    assert (stalled(), list(Task.objects.lapsed())) == ([task], [task])
    assert not Task.objects.stuck().exists()
    assert Task.objects.recover_stalled() == 1


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.123456])
def test_the_deadline_is_exact_whatever_the_fraction_of_the_second(
    task: Task, database_clock: DatabaseClock, fraction: float
) -> None:
    database_clock.advance(fraction)
    Task.objects.progress(task, {"done": 1})

    database_clock.advance(60)

    assert stalled() == [task]


SIGNS: dict[str, Callable[[Task], object]] = {
    "progress": lambda task: Task.objects.progress(task),
    "a checkpoint": lambda task: Task.objects.checkpoint(task, 1),
    "a step": lambda task: Task.objects.finish_step(task, "fetch"),
}


@pytest.mark.parametrize("sign", SIGNS.values(), ids=SIGNS)
def test_every_sign_of_life_counts_anew(
    task: Task, database_clock: DatabaseClock, sign: Callable[[Task], object]
) -> None:
    database_clock.advance(59)
    sign(task)
    database_clock.advance(59)
    assert stalled() == []

    database_clock.advance(1)
    assert stalled() == [task]


def test_a_heartbeat_is_no_progress(task: Task, database_clock: DatabaseClock) -> None:
    database_clock.advance(60)
    Task.objects.heartbeat(task)

    assert stalled() == [task]


def test_only_running_tasks_with_a_timeout_stall(database_clock: DatabaseClock) -> None:
    make_task(state="running", ttl=3600)
    for state in ("ready", "succeeded", "failed", "retrying", "returned"):
        make_task(state=state)
    Task.objects.exclude(status="running").update(progress_timeout=timedelta(seconds=1))
    database_clock.advance(3000)

    assert (stalled(), Task.objects.recover_stalled()) == ([], 0)


def test_it_is_taken_from_its_holder_under_a_raised_token(
    task: Task, database_clock: DatabaseClock, reported: Reported
) -> None:
    before = row_of(task)
    database_clock.advance(61)
    reported.clear()

    assert Task.objects.recover_stalled() == 1

    after = row_of(task)
    assert (after["status"], after["attempts"]) == (TaskStatus.READY, 1)
    assert after["fencing_token"] > before["fencing_token"]
    assert after["expires_at"] == database_clock.now
    assert after["scheduled_at"] > database_clock.now
    record = attempt(task)
    assert (record.outcome, record.holder) == (AttemptOutcome.LOST, "ann")
    assert record.grant_id == before["grant_id"]
    assert record.error == after["last_error"] == "no progress for 1 min"
    ((name, key, details),) = reported
    assert (name, key, details["holder"]) == ("recovered", task.pk, "ann")
    assert (details["reason"], details["kind"]) == ("no progress for 1 min", "stalled")


def test_in_its_last_attempt_it_is_failed(task: Task, database_clock: DatabaseClock) -> None:
    Task.objects.filter(pk=task.pk).update(max_attempts=1)
    database_clock.advance(61)

    Task.objects.recover_stalled()

    assert (row_of(task)["status"], attempts(task)) == (TaskStatus.FAILED, [(1, "lost")])


def test_the_zombie_is_told_by_its_next_renewal_and_what_it_writes_is_refused(
    task: Task,
    database_clock: DatabaseClock,
    context: ContextOf,
    notes: Keeper,
    clock: FakeClock,
) -> None:
    ctx = context(task)
    hold = ctx._attempt
    database_clock.advance(61)
    recovery.sweep()
    make_due(task)
    again = claimed(task, "bob")
    assert hold.valid

    clock.advance(1500)
    notes.renew_due()
    assert hold.lost.is_set()
    with pytest.raises(LeaseLost):
        hold.ensure()
    for late in (lambda: ctx.progress(1), lambda: Task.objects.complete(task, "late")):
        with pytest.raises(LeaseLost, match="bob has held it"):
            late()

    Task.objects.complete(again, "well")
    assert (row_of(task)["task_output"], refusals(task)) == ("well", ["progress"])


@pytest.mark.parametrize("change", [end_well, take_back, lambda task: Task.objects.progress(task)])
def test_what_moved_between_lock_and_update_is_left_alone(
    task: Task, database_clock: DatabaseClock, change: Callable[[Task], object]
) -> None:
    database_clock.advance(61)
    before: dict[str, object] = {}

    def meanwhile() -> None:
        change(task)
        before.update(row_of(task))

    with just_before_the_update(meanwhile):
        Task.objects.recover_stalled()

    assert row_of(task) == before | {"last_error": row_of(task)["last_error"]}


def test_a_new_grant_between_lock_and_update_is_left_alone(
    task: Task, database_clock: DatabaseClock
) -> None:
    database_clock.advance(61)

    def meanwhile() -> None:
        take_back(task)
        grant_to(task, "bob")
        Task.objects.filter(pk=task.pk).update(progress_timeout=timedelta(seconds=-1))

    with just_before_the_update(meanwhile):
        assert Task.objects.recover_stalled() == 0

    assert row_of(task)["holder"] == "bob"


def test_it_takes_no_more_than_asked(task: Task, database_clock: DatabaseClock) -> None:
    other = make_task(state="running", ttl=3600)
    Task.objects.filter(pk=other.pk).update(progress_timeout=timedelta(seconds=60))
    database_clock.advance(61)

    assert [Task.objects.recover_stalled(1) for _ in range(3)] == [1, 1, 0]


def test_a_sweep_takes_stuck_and_stalled_tasks_in_batches(
    task: Task, database_clock: DatabaseClock
) -> None:
    count = querysets_recovery.SWEEP_BATCH + 1
    Task.objects.enqueue_many("jobs.echo", [{}] * count)
    assert len(Task.objects.take("ann", limit=count)) == count
    database_clock.advance(61)

    assert (recovery.sweep(), recovery.sweep()) == (count + 1, 0)


def test_a_claim_that_sweeps_takes_them_too(
    task: Task, database_clock: DatabaseClock, settings: Settings
) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 0, "cap": 0}}
    database_clock.advance(61)
    querysets_recovery.swept_at.clear()

    (again,) = Task.objects.claim("bob")

    assert (again.pk, again.attempts) == (task.pk, 2)


# Where it is seen


def test_its_diagnosis_says_that_nothing_moves(task: Task, database_clock: DatabaseClock) -> None:
    database_clock.advance(59)
    make_worker(name="ann")
    Worker.objects.all().seen("ann")
    Task.objects.heartbeat(task)
    assert diagnose(task).code == "no_progress"
    database_clock.advance(2)

    answer = diagnose(task)

    assert (answer.code, answer.severity) == ("zombie", "warning")
    assert answer.headline == (
        "Stalled: ann sends heartbeats, but its last sign of progress was 1 min 1 s ago."
    )
    assert "makes it ready again" in answer.next
    assert dict(answer.facts)["Last progress"] == "1 min 1 s ago (limit: 1 min)"
    assert [action.name for action in answer.actions] == ["revoke", "cancel"]


def test_where_nobody_sweeps_it_does_not_recover_automatically(
    task: Task, database_clock: DatabaseClock
) -> None:
    database_clock.advance(61)

    answer = diagnose(task)

    assert (answer.code, answer.severity) == ("zombie", "critical")
    assert "manage.py run_recovery" in answer.next


def test_the_stuck_list_and_the_overview_have_it(task: Task, database_clock: DatabaseClock) -> None:
    database_clock.advance(61)
    viewer = signed_in("leasing_tasks.view_task")

    page = get(viewer, reverse("leasing_tasks:stuck"))

    assert reverse("leasing_tasks:detail", args=[task.pk]) in page.links
    assert "its last sign of progress was 1 min 1 s ago" in page.text
