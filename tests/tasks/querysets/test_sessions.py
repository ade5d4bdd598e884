"""Two sessions that act on one task: the second judges what the first has committed meanwhile.

On PostgreSQL it waits for the row, or passes over it; on SQLite for the database's write lock,
which the first has from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import connection

from leasing.exceptions import LeaseLost
from leasing.functions import after
from tasks.models import Task
from tests.factories import make_task
from tests.leasing.locks import someone_waits
from tests.leasing.support import OtherSession
from tests.processes import wait_for
from tests.tasks.support import copy_of

pytestmark = pytest.mark.django_db(transaction=True)

Verb = Callable[[Task], Any]


def mine(task: Task) -> Any:
    return Task.objects.filter(pk=task.pk)


class Schedule(NamedTuple):
    """What two sessions do to a task, and how it ends."""

    state: str
    first: Verb
    second: Verb
    #: The second's result, or LeaseLost.
    result: Any
    ends: str
    #: True if the second waits for the row where there are row locks.
    waits: bool = True


def complete(task: Task) -> Any:
    return Task.objects.complete(task, 1)


def fail(task: Task) -> Any:
    return Task.objects.fail(task, "no luck")


def recover(task: Task) -> Any:
    return Task.objects.recover()


def later(task: Task) -> Any:
    return mine(task).reschedule(scheduled_at=task.scheduled_at + timedelta(hours=1))


SCHEDULES = {
    "complete behind recover": Schedule("stuck", recover, complete, LeaseLost, "ready"),
    "fail behind recover": Schedule("stuck", recover, fail, LeaseLost, "ready"),
    "heartbeat behind recover": Schedule(
        "stuck", recover, Task.objects.heartbeat, LeaseLost, "ready"
    ),
    "checkpoint behind revoke": Schedule(
        "running",
        lambda task: mine(task).revoke("gone", "olga"),
        lambda task: Task.objects.checkpoint(task, 1),
        LeaseLost,
        "ready",
    ),
    "complete behind fail": Schedule("running", fail, complete, LeaseLost, "ready"),
    "revoke behind complete": Schedule(
        "running", complete, lambda task: mine(task).revoke("gone", "olga"), 0, "succeeded"
    ),
    "cancel behind complete": Schedule(
        "running", complete, lambda task: mine(task).cancel("olga"), 0, "succeeded"
    ),
    "discard behind retry": Schedule(
        "failed", lambda task: mine(task).retry(), lambda task: mine(task).discard(), 0, "ready"
    ),
    "retry behind retry": Schedule(
        "failed", lambda task: mine(task).retry(), lambda task: mine(task).retry(), 0, "ready"
    ),
    "reschedule behind cancel": Schedule(
        "ready", lambda task: mine(task).cancel("olga"), later, 0, "cancelled"
    ),
    "recover behind complete": Schedule("stuck", complete, recover, 0, "succeeded", waits=False),
    "recover behind a heartbeat": Schedule(
        "stuck",
        lambda task: mine(task).update(expires_at=after(timedelta(seconds=60))),
        recover,
        0,
        "running",
        waits=False,
    ),
    "claim behind cancel": Schedule(
        "ready",
        lambda task: mine(task).cancel("olga"),
        lambda task: len(Task.objects.claim("bob")),
        0,
        "cancelled",
        waits=False,
    ),
}


@pytest.fixture
def third_session() -> Iterator[OtherSession]:
    session = OtherSession()
    yield session
    session.close()


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_second_verb_judges_what_the_first_has_written(
    name: str, other_session: OtherSession, third_session: OtherSession
) -> None:
    schedule = SCHEDULES[name]
    task = make_task(state=schedule.state, holder="ann", ttl=60)
    other_session.begin()
    other_session.run(schedule.first, copy_of(task))

    second = third_session.start(schedule.second, copy_of(task))
    if connection.vendor == "postgresql":
        wait_for(someone_waits if schedule.waits else second.done)
    other_session.commit()

    if schedule.result is LeaseLost:
        with pytest.raises(LeaseLost):
            second.result(20)
    else:
        assert second.result(20) == schedule.result
    assert Task.objects.get().status == schedule.ends
    assert Task.objects.get().task_output == (1 if schedule.ends == "succeeded" else None)


def test_of_two_enqueues_with_one_key_the_second_returns_the_task_of_the_first(
    other_session: OtherSession, third_session: OtherSession
) -> None:
    other_session.begin()
    first = other_session.run(lambda: Task.objects.enqueue("jobs.echo", unique_key="a"))

    second = third_session.start(lambda: Task.objects.enqueue("jobs.echo", unique_key="a"))
    if connection.vendor == "postgresql":
        wait_for(someone_waits)
    other_session.commit()

    assert (second.result(20).pk, second.result(20).is_duplicate) == (first.pk, True)
    assert Task.objects.count() == 1


@pytest.mark.parametrize("is_undo_first", [True, False])
def test_a_task_and_its_compensation_are_never_both_retried(
    is_undo_first: bool, other_session: OtherSession, third_session: OtherSession
) -> None:
    task, undo = make_task(state="failed"), make_task(state="cancelled")
    mine(task).update(compensation="jobs.undo")
    key = f"undo:{task.pk}:{task.attempts}"
    mine(undo).update(compensation="", parent=task, idempotency_key=key)
    first, second = (undo, task) if is_undo_first else (task, undo)
    other_session.begin()
    assert other_session.run(lambda: mine(first).retry()) == 1

    retried = third_session.start(lambda: mine(second).retry())
    if connection.vendor == "postgresql":
        wait_for(someone_waits)
    other_session.commit()

    assert retried.result(20) == 0
