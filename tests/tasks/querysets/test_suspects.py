"""A task that is lost beside one that is suspected of killing workers is not failed by that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from leasing.functions import after
from tasks.models import Task, TaskStatus
from tasks.querysets.recovery import is_lost_with_worker
from tests.factories import claimed, make_task
from tests.leasing.support import OtherSession, expire
from tests.limits import Limits
from tests.tasks.support import make_due

pytestmark = pytest.mark.django_db


def lost_with(holder: str, *tasks: Task) -> None:
    """Have the worker ``holder`` die while it runs ``tasks``."""
    for task in tasks:
        make_due(task)
        expire(claimed(task, holder))
    Task.objects.recover()


def state(task: Task) -> tuple[str, int]:
    task.refresh_from_db()
    return task.status, task.attempts


def suspect(losses: int = 2) -> Task:
    task = make_task(max_attempts=50)
    for number in range(losses):
        lost_with(f"earlier-{number}", task)
    return task


def victim(attempts: int = 2, *, max_attempts: int = 3) -> Task:
    task = make_task(max_attempts=max_attempts)
    for number in range(attempts):
        lost_with(f"other-{number}", task)
    return task


def test_the_last_attempt_is_not_counted_beside_a_suspect() -> None:
    killer, task = suspect(), victim()

    lost_with("ann", killer, task)

    assert state(task) == (TaskStatus.READY, 2)
    assert task.last_error == (
        "ann did not renew its lease in time, "
        f"with task:{killer.pk}, which may be the cause: not counted"
    )
    assert task.attempt_set.filter(outcome="lost").count() == 3
    assert state(killer) == (TaskStatus.READY, 3)


def test_a_suspect_whose_loss_was_recorded_before_counts_too() -> None:
    killer, task = suspect(), victim()
    make_due(task)
    mine = claimed(task, "ann")
    lost_with("ann", killer)

    expire(mine)
    Task.objects.recover()

    assert state(task) == (TaskStatus.READY, 2)


def test_it_is_so_where_a_parent_saw_the_worker_die() -> None:
    killer, task = suspect(), victim()
    for each in (killer, task):
        make_due(each)
        claimed(each, "ann")

    Task.objects.filter(holder="ann").take_from_dead("its worker was killed", timedelta(0))

    assert state(task) == (TaskStatus.READY, 2)


def fails(*, losses: int = 2, others: int = 2, attempts: int = 3, apart: bool = False) -> Task:
    """Lose a task with its worker, beside one that was lost ``losses`` times before, or ``apart``;
    it was lost with ``others``, and may be so many ``attempts``."""
    killer, task = suspect(losses), victim(others, max_attempts=attempts)
    if apart:
        make_due(task)
        mine = claimed(task, "ann")
        lost_with("bob", killer)
        expire(mine)
        Task.objects.recover()
    else:
        lost_with("ann", killer, task)
    return task


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"apart": True}, id="the suspect was on another worker"),
        pytest.param({"losses": 1, "others": 1, "attempts": 2}, id="the other is no suspect yet"),
        pytest.param({"losses": 3, "others": 4, "attempts": 5}, id="the other was lost less often"),
        pytest.param({"others": 0, "attempts": 1}, id="it must not run twice"),
    ],
)
def test_otherwise_the_last_attempt_counts(options: dict[str, int]) -> None:
    assert state(fails(**options)) == (TaskStatus.FAILED, options.get("attempts", 3))  # type: ignore[arg-type]


def test_an_attempt_that_is_not_the_last_counts() -> None:
    assert state(fails(others=1)) == (TaskStatus.READY, 2)


def test_what_an_earlier_process_of_that_name_lost_is_not_beside_it() -> None:
    task = victim()
    killer = suspect()
    lost_with("ann", killer)

    lost_with("ann", task)

    assert state(task) == (TaskStatus.FAILED, 3)


def stall(task: Task) -> None:
    """Take the running task from a holder that is well."""
    Task.objects.filter(pk=task.pk).update(
        progress_timeout=timedelta(seconds=1), progressed_at=after(-timedelta(seconds=9))
    )
    Task.objects.recover_stalled()


def test_a_task_that_stalls_beside_a_suspect_counts() -> None:
    killer, task = suspect(), victim()
    for each in (killer, task):
        make_due(each)
        claimed(each, "ann")

    stall(task)

    assert state(task) == (TaskStatus.FAILED, 3)


@pytest.mark.parametrize(
    "leave",
    [stall, lambda task: Task.objects.fail(task, "its worker has no paper")],
    ids=["stalled", "failed"],
)
def test_a_suspect_that_left_the_worker_before_is_not_beside_what_it_loses(
    leave: Callable[[Task], object],
) -> None:
    killer, task = suspect(3), victim()
    for each in (killer, task):
        make_due(each)
    mine = claimed(task, "ann")
    leave(claimed(killer, "ann"))

    expire(mine)
    Task.objects.recover()

    assert state(task) == (TaskStatus.FAILED, 3)


def test_the_running_of_a_suspect_with_a_worker_that_is_well_is_no_loss() -> None:
    killer, task = suspect(1), victim()
    make_due(task)
    mine = claimed(task, "ann")
    lost_with("ann", killer)
    make_due(killer)
    claimed(killer, "bob")

    expire(mine)
    Task.objects.recover()

    assert state(task) == (TaskStatus.FAILED, 3)


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_task_whose_row_was_locked_is_not_lost_with_its_worker(
    other_session: OtherSession,
) -> None:
    killer, task = suspect(), victim()
    for each in (killer, task):
        make_due(each)
        expire(claimed(each, "ann"))
    other_session.lock(task)
    assert [Task.objects.recover() for _ in range(2)] == [1, 0]
    other_session.commit()

    Task.objects.recover()

    assert state(task) == (TaskStatus.FAILED, 3)


def test_two_that_spare_each_other_come_to_an_end() -> None:
    both = [make_task(max_attempts=3) for _ in range(2)]
    deaths = 0
    while open_ := [task for task in both if state(task)[0] == TaskStatus.READY]:
        lost_with(f"worker-{deaths}", *open_)
        deaths += 1
        assert deaths <= 6

    assert deaths == 6
    assert {state(task) for task in both} == {(TaskStatus.FAILED, 3)}


def test_what_an_operator_took_is_not_lost_with_its_worker_whatever_the_reason() -> None:
    killer, task = make_task(max_attempts=50), victim()
    for number in range(2):
        make_due(killer)
        claimed(killer, f"bob-{number}")
        Task.objects.filter(pk=killer.pk).revoke("bob did not renew its lease in time")

    lost_with("ann", killer, task)

    assert state(task) == (TaskStatus.FAILED, 3)
    revoked = killer.attempt_set.values_list("error", flat=True)[0]
    assert not is_lost_with_worker(revoked)


def test_losses_of_another_kind_are_not_searched_without_end(
    limits: Limits,
) -> None:
    """Among a million of them, whose texts would all be read."""
    killer, task = suspect(), victim()
    make_due(task)
    mine = claimed(task, "ann")
    lost_with("ann", killer)
    other = make_task(max_attempts=50)
    for _ in range(2):
        make_due(other)
        claimed(other, "eve")
        Task.objects.filter(pk=other.pk).revoke()
    limits(suspects_read=2)

    expire(mine)
    Task.objects.recover()

    assert state(task) == (TaskStatus.FAILED, 3)
