"""Handing back the tasks of a worker that died."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from django.db import OperationalError
from pytest_django import Settings

from leasing.functions import database_now
from tasks.fleet import hand_back
from tasks.fleet.hand_back import DeadWorker
from tasks.models import Task, TaskStatus, Worker
from tasks.notifier import limiter
from tests.factories import make_task, make_worker
from tests.leasing.support import FakeClock, expire
from tests.limits import Limits
from tests.tasks.support import (
    Reported,
    attempts,
    grant_to,
    names_of,
    refusing,
    row_of,
    running,
    take_over,
)

pytestmark = pytest.mark.django_db

WHY = "its worker was killed by signal 9"


def dead_worker(*begun: Task, holder: str = "ann") -> DeadWorker:
    grants = [task.grant_id for task in begun]
    return DeadWorker(holder, WHY, frozenset(filter(None, grants)))


def test_what_had_not_begun_is_ready_at_once_and_no_attempt_is_spent() -> None:
    (task,) = running(1, holder="ann", max_attempts=1)

    assert hand_back.hand_back(dead_worker()) == (1, 0)

    row = row_of(task)
    assert (row["status"], row["attempts"], row["last_error"]) == (TaskStatus.READY, 0, "")
    assert row["scheduled_at"] <= database_now("default")
    assert attempts(task) == []


def test_what_had_begun_is_lost_and_waits_for_its_back_off(settings: Settings) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "BACKOFF": {"base": 60, "cap": 60}}
    (task,) = running(1, holder="ann", max_attempts=2)

    assert hand_back.hand_back(dead_worker(task)) == (0, 1)

    row = row_of(task)
    assert (row["status"], row["attempts"], row["last_error"]) == (TaskStatus.READY, 1, WHY)
    assert (row["scheduled_at"] - database_now("default")).total_seconds() > 30
    assert attempts(task) == [(1, "lost")]


def test_what_had_begun_with_its_last_attempt_fails(reported: Reported) -> None:
    (task,) = running(1, holder="ann", max_attempts=1)
    reported.clear()

    hand_back.hand_back(dead_worker(task))

    assert row_of(task)["status"] == TaskStatus.FAILED
    assert names_of(reported) == ["recovered", "failed"]
    assert reported[0][2]["kind"] == "died"


def test_the_lock_delay_is_the_shortest_pause_of_what_had_begun(settings: Settings) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "BACKOFF": {"base": 0, "cap": 0}}
    settings.LEASING = {**settings.LEASING, "GRACE": 100}
    begun, unbegun = running(2, holder="ann")

    hand_back.hand_back(dead_worker(begun))

    now = database_now("default")
    assert (row_of(begun)["scheduled_at"] - now).total_seconds() > 90
    assert row_of(unbegun)["scheduled_at"] <= now


def test_workers_are_told_to_look_from_the_beginning_if_something_is_ready_there() -> None:
    """They have passed it. What had begun waits for its back-off."""
    begun, unbegun = running(2, holder="ann")
    heard: list[str] = []
    with limiter.heard_by(heard.append):
        Task.objects.complete(begun)
        hand_back.hand_back(dead_worker(begun))
        assert heard.count("all") == 1
        hand_back.hand_back(dead_worker(begun))
    assert heard.count("all") == 1
    assert row_of(unbegun)["status"] == TaskStatus.READY


def test_tasks_of_others_are_left_alone() -> None:
    """Also one that somebody else has claimed whose mark the dead worker left: a mark is a grant,
    and not a key."""
    (others,) = running(1, holder="bob")
    (taken,) = running(1, holder="ann")
    marked = dead_worker(taken)
    take_over(taken)
    rows = row_of(others), row_of(taken)

    assert hand_back.hand_back(marked) == (0, 0)

    assert (row_of(others), row_of(taken)) == rows


def test_what_has_expired_is_left_to_recovery_unless_it_had_begun() -> None:
    """Without a mark nobody knows any more if it had: a mark is kept for as long as the lease."""
    begun, unknown = running(2, holder="ann")
    for task in (begun, unknown):
        expire(task)

    assert hand_back.hand_back(dead_worker(begun)) == (0, 1)

    assert row_of(unknown)["status"] == TaskStatus.RUNNING


def test_what_someone_asked_to_cancel_is_cancelled() -> None:
    begun, unbegun = running(2, holder="ann")
    Task.objects.filter(pk__in=[begun.pk, unbegun.pk]).cancel(by="olga")

    hand_back.hand_back(dead_worker(begun))

    assert {row_of(task)["status"] for task in (begun, unbegun)} == {TaskStatus.CANCELLED}


def test_many_are_handed_back_in_parts(limits: Limits) -> None:
    limits(together=2)
    tasks = running(5, holder="ann")

    assert hand_back.hand_back(dead_worker(tasks[0])) == (4, 1)


class Clock:
    """In place of the clock and of ``time.sleep``."""

    def __init__(self, clock: FakeClock) -> None:
        clock.now = 0.0
        self.clock = clock
        self.between: list[Any] = []

    @property
    def now(self) -> float:
        return self.clock()

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.between:
            self.between.pop(0)()


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch, holder_clock: FakeClock) -> Clock:
    moments = Clock(holder_clock)
    monkeypatch.setattr(time, "sleep", moments.sleep)
    return moments


def write(dead: DeadWorker, until: float = 30) -> None:
    """Do in this process what ``run`` does in one that it ends."""
    hand_back._write(dead, until)


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
def test_a_claim_that_was_on_its_way_is_found_by_the_next_look(moments: Clock, looks: int) -> None:
    task = make_task(state="ready")
    moments.between = [*[lambda: None] * (looks - 1), lambda: grant_to(task, "ann")]

    write(dead_worker())

    assert (row_of(task)["status"], row_of(task)["attempts"]) == (TaskStatus.READY, 0)
    assert moments.now == pytest.approx(1)


@pytest.mark.parametrize("begun", [False, True])
def test_the_log_says_what_was_handed_back_and_nothing_where_nothing_was(
    moments: Clock, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    (task,) = running(1, holder="ann")

    write(dead_worker(task) if begun else dead_worker())

    said = [line for line in caplog.messages if "Recovered" in line]
    counts = "given back: 0; lost: 1" if begun else "given back: 1; lost: 0"
    assert said == [f"Recovered tasks of ann; {counts}"]


def test_the_worker_is_shown_as_stopped(moments: Clock) -> None:
    dead, alive = make_worker(name="ann"), make_worker(name="bob")

    write(dead_worker())

    assert Worker.objects.get(pk=dead.pk).stopped_at is not None
    assert Worker.objects.get(pk=alive.pk).stopped_at is None


@pytest.mark.django_db(transaction=True)
def test_while_the_database_is_away_it_tries_again(
    moments: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once, not four times a second."""
    (task,) = running(1, holder="ann")
    tries = iter(range(3))

    def refuses(sql: str, params: Any) -> bool:
        return "leasing_tasks_task" in sql and next(tries, None) is not None

    with caplog.at_level(logging.INFO), refusing(OperationalError("away"), refuses):
        write(dead_worker())

    assert row_of(task)["status"] == TaskStatus.READY
    warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert ["could not be handed back" in each.getMessage() for each in warned] == [True, False]
    assert any("answers again" in line for line in caplog.messages)


@pytest.mark.django_db(transaction=True)
def test_after_the_ttl_it_gives_up(moments: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with refusing(OperationalError("away"), lambda sql, params: True):
        write(dead_worker(), until=3)

    assert moments.now == 3
    assert "left to recovery" in caplog.text
