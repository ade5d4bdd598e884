"""Conditions of each holder verb on the row, one at a time.

Each row of the table breaks one condition, before the verb begins or between its lock and its
update (as could happen on a database without row locks). The verb is then refused and changes
nothing. Take a condition out of ``tasks.querysets`` and a line here fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import product
from typing import Any

import pytest

from leasing.exceptions import LeaseLost
from tasks import querysets, signals
from tasks.exceptions import GiveUp
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask
from tests.factories import make_task
from tests.leasing.support import expire, just_before_the_update
from tests.tasks.support import (
    Reported,
    attempts,
    copy_of,
    end_well,
    locks_and_writes,
    prolong,
    row_of,
    take_back,
    take_over,
)

pytestmark = pytest.mark.django_db

Verb = Callable[[Task], object]


def renew_many(task: Task) -> None:
    """As the keeper renews; its answer in the form of the other verbs."""
    assert task.grant_id is not None
    answer = Task.objects.all().renew_many({task.pk: task.grant_id})
    if task.pk in answer.lost:
        raise LeaseLost(task.lease_resource, answer.lost[task.pk])


def all_or_raise(answer: tuple[list[Task], list[tuple[Task, Exception]]]) -> None:
    """Raise the first refusal among many, in the form of the other verbs."""
    for _, error in answer[1]:
        raise error


def complete_claimed(task: Task) -> None:
    """As a worker completes what it took, in the form of the other verbs."""
    task.now, task.sent_at = task.expires_at, 0.0
    # Who listens gets an instance, by another way.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals.completed, "receivers", [])
        refused = Task.objects.complete_claimed([(ClaimedTask.of(task), {"x": 1})])
    for _, error in refused:
        raise error


def sold(task: Task) -> None:
    """The row is somebody else's, who is well."""
    take_over(task)
    prolong(task)


VERBS: dict[str, Verb] = {
    "heartbeat": lambda task: Task.objects.heartbeat(task),
    "renew many": renew_many,
    "complete": lambda task: Task.objects.complete(task, {"late": True}),
    "complete in time": lambda task: Task.objects.complete(task, unexpired=True),
    "fail": lambda task: Task.objects.fail(task, "no luck"),
    "fail in time": lambda task: Task.objects.fail(task, "no luck", unexpired=True),
    "give up": lambda task: Task.objects.fail(task, GiveUp("no hope")),
    "give up in time": lambda task: Task.objects.fail(task, GiveUp("no hope"), unexpired=True),
    "give back": lambda task: Task.objects.give_back(task, "again"),
    "snooze": lambda task: Task.objects.snooze(task, 5),
    "progress": lambda task: Task.objects.progress(task, {"done": 1}),
    "checkpoint": lambda task: Task.objects.checkpoint(task, [1]),
    "finish step": lambda task: Task.objects.finish_step(task, "fetch", 1),
    "complete claimed": lambda task: complete_claimed(task),
    "complete many": lambda task: all_or_raise(Task.objects.complete_many([(task, {"x": 1})])),
    "fail many": lambda task: all_or_raise(Task.objects.fail_many([(task, "no luck")])),
    "accept cancel": lambda task: Task.objects.accept_cancel(task),
    "release": lambda task: Task.objects.release(task),
}
BREAKS: dict[str, Callable[[Task], object]] = {
    "another has the grant": sold,
    "it has ended": end_well,
    "it was recovered": take_back,
    "its deadline has passed": expire,
}
#: Those that need no clock where the caller does not ask for it.
TIMELESS = {
    "complete",
    "complete many",
    "complete claimed",
    "fail",
    "fail many",
    "give up",
    "accept cancel",
    "give back",
    "snooze",
    "release",
    "progress",
    "checkpoint",
    "finish step",
}
#: Those whose one statement reads no clock to judge by: it may wait for its row.
ONE_STATEMENT = {"progress", "checkpoint"}
#: Each verb with the attempts that its task is given: to fail is another update at the last.
CASES = {
    f"{verb}, {reported}" if reported else verb: (verb, attempts)
    for verb in VERBS
    for reported, attempts in (
        {"the last attempt": 1, "the first of three": 3} if verb.startswith("fail") else {"": 3}
    ).items()
}
TABLE = [
    pytest.param(VERBS[verb], BREAKS[broken], attempts, id=f"{case}, but {broken}")
    for (case, (verb, attempts)), broken in product(CASES.items(), BREAKS)
    if not (verb in TIMELESS and broken == "its deadline has passed")
]


def of_each(names: Collection[str]) -> pytest.MarkDecorator:
    """Parametrise by each verb of ``names``, and its task."""
    cases = {case: of for case, of in CASES.items() if of[0] in names}
    return pytest.mark.parametrize(
        ("name", "task"), cases.values(), ids=list(cases), indirect=["task"]
    )


@pytest.fixture
def task(request: pytest.FixtureRequest) -> Task:
    """A running task."""
    created = make_task(state="running", holder="ann", max_attempts=request.param)
    return created


@pytest.fixture
def refusals_unnoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noting a refusal takes an expired task from its holder; here the verb alone is looked at."""
    monkeypatch.setattr(querysets.TaskQuerySet, "note_refused", lambda *refusal: None)


@pytest.mark.usefixtures("refusals_unnoted")
@pytest.mark.parametrize(("verb", "breaks", "task"), TABLE, indirect=["task"])
def test_a_verb_whose_condition_is_broken_changes_nothing(
    verb: Verb, breaks: Callable[[Task], object], task: Task, reported: Reported
) -> None:
    breaks(task)
    before = row_of(task)
    reported.clear()

    with pytest.raises(LeaseLost):
        verb(copy_of(task))

    assert row_of(task) == before
    assert (attempts(task), task.step_set.count()) == ([], 0)
    assert {name for name, _, _ in reported} <= {"refused"}


@pytest.mark.usefixtures("refusals_unnoted")
@pytest.mark.parametrize(("verb", "breaks", "task"), TABLE, indirect=["task"])
def test_a_condition_broken_between_lock_and_update_is_noticed(
    verb: Verb, breaks: Callable[[Task], object], task: Task
) -> None:
    before: dict[str, Any] = {}

    def meanwhile() -> None:
        breaks(task)
        before.update(row_of(task))

    with just_before_the_update(meanwhile), pytest.raises(LeaseLost):
        verb(copy_of(task))

    assert row_of(task) == before
    assert (attempts(task), task.step_set.count()) == ([], 0)


@of_each(("fail", "give back", "snooze", "accept cancel"))
@pytest.mark.usefixtures("refusals_unnoted")
def test_a_request_to_cancel_between_lock_and_update_is_not_overlooked(
    name: str, task: Task
) -> None:
    """The columns were chosen without it: the task would wait again, though it is to end."""
    before: dict[str, Any] = {}

    def meanwhile() -> None:
        Task.objects.filter(pk=task.pk).cancel(by="eve")
        before.update(row_of(task))

    with just_before_the_update(meanwhile), pytest.raises(LeaseLost):
        VERBS[name](copy_of(task))

    assert (before["status"], before["cancel_requested_by"]) == ("running", "eve")
    assert row_of(task) == before
    assert attempts(task) == []


@of_each(TIMELESS)
def test_a_deadline_that_has_passed_is_no_obstacle_to_the_timeless(name: str, task: Task) -> None:
    expire(task)
    before = row_of(task)

    VERBS[name](task)

    assert row_of(task) != before


@of_each(VERBS)
def test_no_verb_touches_another_row(name: str, task: Task) -> None:
    """Not even one that has come by the same grant, which no verb ever gives twice."""
    other = make_task(state="running")
    Task.objects.filter(pk=other.pk).update(grant_id=task.grant_id)
    before = row_of(other)

    VERBS[name](task)

    assert (row_of(other), attempts(other)) == (before, [])
    assert row_of(task) != before


@of_each(VERBS.keys() - ONE_STATEMENT)
@pytest.mark.usefixtures("on_postgresql", "portable")
def test_every_verb_locks_its_row_before_it_judges(name: str, task: Task) -> None:
    """A statement that waited for a lock would judge by a time that is over."""
    with locks_and_writes() as steps:
        VERBS[name](task)

    assert steps[0].startswith("lock") and "write" in steps
