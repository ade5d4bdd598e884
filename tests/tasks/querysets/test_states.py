"""Tasks by state, and workers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasing.functions import database_now
from tasks.dashboard.worker_rows import state_of
from tasks.models import Task, TaskStatus, Worker, WorkerState
from tests.factories import claimed, make_task, make_worker
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import make_due

pytestmark = pytest.mark.django_db

STATES: dict[str, set[str]] = {
    "ready": {"ready"},
    "scheduled": {"scheduled"},
    "running": {"running"},
    "stuck": {"running", "stuck"},
    "succeeded": {"succeeded"},
    "failed": {"failed"},
    "given_up": {"failed"},
    "cancelled": {"cancelled"},
    "retrying": {"scheduled"},
    "recovered": {"ready"},
    "returned": {"ready"},
}
LISTS = ("ready", "scheduled", "running", "stuck", "succeeded", "failed", "cancelled")


@pytest.mark.parametrize(("state", "listed"), STATES.items(), ids=STATES)
def test_a_task_stands_in_the_lists_of_its_state_only(state: str, listed: set[str]) -> None:
    task = make_task(state=state)

    assert {name for name in LISTS if task in getattr(Task.objects.all(), name)()} == listed


@pytest.mark.parametrize("state", STATES)
def test_a_task_is_ended_by_its_holder_unless_it_was_taken_from_it(state: str) -> None:
    make_task(state=state)

    ended = Task.objects.all().ended_by_holders().exists()

    assert ended is (state in ("succeeded", "failed", "given_up", "retrying", "returned"))


def test_a_task_that_was_taken_is_not_ended_by_its_holder_for_an_earlier_attempt() -> None:
    task = make_task(state="retrying")
    make_due(task)
    Task.objects.claim("second")
    Task.objects.all().revoke("in the tests", "an operator")

    assert not Task.objects.all().ended_by_holders().exists()


def test_a_scheduled_task_becomes_ready_by_the_databases_clock(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(scheduled_at=database_clock.now + timedelta(seconds=5))

    database_clock.now = task.scheduled_at - timedelta(microseconds=1)
    assert (Task.objects.ready().count(), Task.objects.scheduled().count()) == (0, 1)
    database_clock.now = task.scheduled_at
    assert (Task.objects.ready().count(), Task.objects.scheduled().count()) == (1, 0)


def test_a_task_that_was_cancelled_before_its_time_is_scheduled_no_more() -> None:
    task = Task.objects.enqueue("jobs.echo", delay=60)
    Task.objects.filter(pk=task.pk).cancel()

    assert not Task.objects.scheduled().exists()


def test_what_has_ended_and_what_has_not_are_all_there_is() -> None:
    assert set(TaskStatus.ended()) == {"succeeded", "failed", "cancelled"}
    assert set(TaskStatus.values) - set(TaskStatus.ended()) == {"ready", "running"}


def test_a_tasks_lease_is_named_after_its_address() -> None:
    task = make_task()

    assert task.lease_id == f"task:{task.pk}"
    assert task.lease_resource == f"/api/tasks/{task.pk}"
    assert str(task) == f"task:{task.pk} sample.sleep"


# Workers


@pytest.mark.parametrize("state", WorkerState.values)
def test_a_workers_state_is_what_its_last_sign_of_life_says(state: str) -> None:
    worker = make_worker(state=state)

    assert Worker.objects.with_state().get(pk=worker.pk).state == state  # type: ignore[attr-defined]
    present = worker in Worker.objects.present()
    assert present is (state in (WorkerState.LIVE, WorkerState.LATE))


def test_only_the_worker_of_that_name_is_seen_or_signs_off() -> None:
    one, two = make_worker(state="late"), make_worker(state="late")

    assert Worker.objects.seen(one.name) == 1
    states = {w.name: w.state for w in Worker.objects.with_state()}  # type: ignore[attr-defined]
    assert states == {one.name: "live", two.name: "late"}

    assert Worker.objects.sign_off(one.name) == 1
    states = {w.name: w.state for w in Worker.objects.with_state()}  # type: ignore[attr-defined]
    assert states == {one.name: "stopped", two.name: "late"}


def test_a_death_is_noted_of_a_worker_that_has_not_stopped_and_of_no_other() -> None:
    died, stopped, other = make_worker(), make_worker(state="stopped"), make_worker()
    for worker in (died, stopped):
        Worker.objects.sign_off_dead(worker.name, "was killed by signal 9" + "!" * 200)

    rows = {each.pk: each for each in Worker.objects.with_state()}
    found = [rows[each.pk] for each in (died, stopped, other)]
    assert [(state_of(each), each.death[:10]) for each in found] == [
        ("stopped", "was killed"),
        ("stopped", ""),
        ("live", ""),
    ]
    assert rows[stopped.pk].stopped_at == stopped.stopped_at


def test_a_worker_that_nobody_knows_is_not_seen() -> None:
    assert Worker.objects.seen("nobody") == 0
    assert not Worker.objects.exists()


# Chosen by other tables


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("retry", "given_up"),
        ("discard", "given_up"),
        ("cancel", "retrying"),
        ("reschedule", "retrying"),
        ("revoke", "recovered"),
    ],
)
def test_operators_choose_tasks_by_what_became_of_their_attempts(verb: str, state: str) -> None:
    task, _ = make_task(state=state), make_task(state="succeeded")
    if verb == "revoke":
        claimed(task, "ann")
    tried = Task.objects.filter(attempt_set__number__gt=0).distinct()
    options = {"scheduled_at": database_now("default")} if verb == "reschedule" else {}

    assert getattr(tried, verb)(**options) == 1
    assert getattr(tried, verb)(**options) == (verb == "reschedule")
