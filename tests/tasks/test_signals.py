"""Signals about tasks, and their log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.dispatch import Signal

from tasks import signals
from tasks.exceptions import GiveUp
from tasks.models import Task
from tests.factories import make_task, make_tasks
from tests.tasks.support import lose, row_of

pytestmark = pytest.mark.django_db


LINES: dict[str, tuple[Callable[[Task], object], int, str]] = {
    "completed": (
        lambda task: Task.objects.complete(task),
        logging.INFO,
        "completed by ann: {name}, attempt 1 of 10",
    ),
    "attempt_failed": (
        lambda task: Task.objects.fail(task, "no luck"),
        logging.WARNING,
        "failed in attempt 1 of 10; next attempt at {scheduled_at}: no luck",
    ),
    "failed": (
        lambda task: Task.objects.fail(task, GiveUp("no hope")),
        logging.ERROR,
        "failed for good after attempt 1 of 10: GiveUp: no hope",
    ),
    "recovered": (
        lose,
        logging.WARNING,
        "recovered from ann: ann did not renew its lease in time",
    ),
    "revoked": (
        lambda task: Task.objects.revoke("wrong printer", "root"),
        logging.WARNING,
        "recovered from ann: revoked by root: wrong printer",
    ),
    "cancelled": (
        lambda task: Task.objects.accept_cancel(task, by="bob"),
        logging.INFO,
        "cancelled: cancelled by bob",
    ),
    "returned": (
        lambda task: Task.objects.give_back(task, "its worker was stopped"),
        logging.INFO,
        "given back by ann: its worker was stopped",
    ),
    "snoozed": (
        lambda task: Task.objects.snooze(task, 60, "the box is locked"),
        logging.INFO,
        "postponed by its handler until {scheduled_at}: the box is locked",
    ),
}


@pytest.mark.parametrize(("do", "level", "says"), LINES.values(), ids=LINES)
def test_what_happens_to_a_running_task_is_logged(
    do: Callable[[Task], object], level: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(state="running", holder="ann")
    caplog.clear()

    do(task)

    line = f"task:{task.pk} {says}".format(**row_of(task))
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, line)]


def test_a_retry_is_logged_with_the_operators_name(caplog: pytest.LogCaptureFixture) -> None:
    task, other = make_tasks(2, state="failed")
    caplog.clear()

    Task.objects.filter(pk=task.pk).retry(by="root")
    Task.objects.filter(pk=other.pk).retry()

    assert [record.getMessage() for record in caplog.records] == [
        f"task:{task.pk} set ready again by root",
        f"task:{other.pk} set ready again by an operator",
    ]


def test_an_enqueue_that_met_another_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(unique_key="k")
    caplog.clear()

    Task.objects.enqueue("jobs.echo", unique_key="k")

    (record,) = caplog.records
    assert record.getMessage() == f"Duplicate enqueue of task:{task.pk} ignored (unique key)"


@pytest.mark.parametrize(
    "signal", [signals.claimed, signals.completed, signals.attempt_failed, signals.recovered]
)
def test_a_receiver_that_raises_harms_nobody(signal: Signal) -> None:
    def receiver(**details: Any) -> None:
        raise RuntimeError("a bug of the receiver's")

    signal.connect(receiver)
    try:
        make_task(state="succeeded")
        make_task(state="retrying")
        make_task(state="recovered")
    finally:
        signal.disconnect(receiver)

    assert Task.objects.count() == 3


def test_a_receiver_may_listen_to_tasks_alone() -> None:
    heard: list[Any] = []

    def receiver(task: Task, **details: Any) -> None:
        heard.append((task, details["sender"]))

    signals.completed.connect(receiver, sender=Task)
    try:
        task = make_task(state="succeeded")
    finally:
        signals.completed.disconnect(receiver, sender=Task)

    assert heard == [(task, Task)]
