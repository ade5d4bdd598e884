"""Ending an attempt badly."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from leasing.exceptions import LeaseLost
from tasks.models import AttemptOutcome, Task, TaskStatus
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.logs import logged
from tests.tasks.support import Drawing, Reported, attempt, attempts, make_due, row_of

pytestmark = pytest.mark.django_db


class Refused(Exception):
    """An error that a handler may raise."""


def test_a_failed_attempt_is_tried_again_after_a_pause(
    database_clock: DatabaseClock, settings: Settings
) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 5.0, "cap": 60.0}}
    task = make_task(state="running", holder="ann")
    database_clock.advance(3)

    answer = Task.objects.fail(task, Refused("the printer is on fire"))

    assert answer is task
    assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}
    assert (task.status, task.attempts) == (TaskStatus.READY, 1)
    assert task.last_error == "Refused: the printer is on fire"
    assert task.scheduled_at == database_clock.now + timedelta(seconds=5)
    assert task.released_at == task.expires_at == database_clock.now
    assert (task.processed_at, task.task_output) == (None, None)
    assert list(Task.objects.scheduled()) == [task]


def test_the_pause_doubles_with_each_attempt_up_to_the_cap(
    database_clock: DatabaseClock, settings: Settings
) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 1.0, "cap": 6.0}}
    task = make_task()
    pauses = []
    for _ in range(5):
        mine = claimed(task, "ann")
        Task.objects.fail(mine, "no luck")
        pauses.append((mine.scheduled_at - database_clock.now).total_seconds())
        make_due(mine)

    assert pauses == [1, 2, 4, 6, 6]


def test_the_pause_is_drawn_from_nothing_up_to_its_bound(
    database_clock: DatabaseClock, drawing: Drawing
) -> None:
    drawn: list[tuple[float, float]] = []

    def lowest(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    drawing(lowest)
    task = make_task(state="running")

    Task.objects.fail(task, "no luck")

    assert drawn == [(0.0, 1.0)]
    assert list(Task.objects.ready()) == [task]


def test_the_last_attempt_that_fails_leaves_a_failed_task(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", max_attempts=2)
    Task.objects.fail(task, "no luck")
    make_due(task)
    (task,) = Task.objects.claim("bob")
    reported.clear()

    Task.objects.fail(task, Refused("no luck again"))

    assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}
    assert (task.status, task.attempts) == (TaskStatus.FAILED, 2)
    assert task.processed_at == task.released_at == task.expires_at == database_clock.now
    assert task.last_error == "Refused: no luck again"
    assert attempts(task) == [(1, "failed"), (2, "failed")]
    assert reported == [("failed", task.pk, {"error": "Refused: no luck again"})]
    assert list(Task.objects.failed()) == [task]


# The history


def raised() -> Exception:
    """An error as a handler raised it, with another as its cause."""
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise Refused("the printer is on fire") from cause
    except Refused as error:
        return error


def test_the_attempt_says_who_tried_when_and_what_went_wrong(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(state="running", holder="ann")
    before = row_of(task)
    database_clock.advance(2)

    Task.objects.fail(task, raised())

    record = attempt(task)
    assert (record.number, record.holder, record.outcome) == (1, "ann", AttemptOutcome.FAILED)
    assert (record.grant_id, record.fencing_token) == (before["grant_id"], before["fencing_token"])
    assert record.started_at == before["acquired_at"]
    assert record.error == "Refused: the printer is on fire"
    assert record.traceback.startswith("Traceback (most recent call last):")
    assert "KeyError: 'cause'" in record.traceback
    assert "in raised" in record.traceback
    assert (record.refused_at, record.refused_verb) == (None, "")


def test_an_error_may_be_text_and_has_no_traceback_then(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(state="running")

    Task.objects.fail(task, "HTTP 502")

    assert (attempt(task).error, attempt(task).traceback) == ("HTTP 502", "")
    assert logged(caplog, error="HTTP 502", exc_info=None) == ["task.attempt_failed"]


class Silent(Exception):
    """Has nothing to say."""

    def __str__(self) -> str:
        return ""


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Broken(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError(), "ZeroDivisionError"),
        (Silent("x"), "Silent"),
        (Mute("x"), "Mute"),
        (Broken("x"), "Broken"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("a\0b"), "ValueError: a\\0b"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (ValueError("строка 🙂"), "ValueError: строка 🙂"),
        ("a\0b", "a\\0b"),
        ("", ""),
    ],
)
def test_every_error_can_be_stored(error: Any, text: str) -> None:
    task = make_task(state="running")

    Task.objects.fail(task, error)

    assert row_of(task)["last_error"] == text
    assert attempt(task).error == text


def test_of_an_endless_error_both_ends_are_kept() -> None:
    task = make_task(state="running")

    Task.objects.fail(task, ValueError("begin" + "x" * 1_000_000 + "end"))

    error = row_of(task)["last_error"]
    assert len(error) < 21_000
    assert error.startswith("ValueError: begin")
    assert error.endswith("end")
    assert len(attempt(task).traceback) < 21_000


# Refused


def test_a_failure_refused_for_the_deadline_is_noted_on_the_attempt_it_lost(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(state="running", ttl=30)
    database_clock.advance(30)

    with pytest.raises(LeaseLost, match="it expired at"):
        Task.objects.fail(task, "no luck", unexpired=True)
    assert attempts(task) == [(1, "lost")]
    assert attempt(task).refused_verb == "fail"
