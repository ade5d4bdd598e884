"""Policies that see the error and the attempt, and what a failure makes of their answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import registry, retry
from tasks.exceptions import GiveUp, TaskError
from tasks.models import Task, TaskStatus
from tasks.retry import Exponential, Fixed, GiveUpOn, RetryOn, RetryPolicy, decide, usual
from tests.factories import make_task
from tests.leasing.conftest import DatabaseClock
from tests.logs import logged
from tests.tasks.support import Handlers, Reported, attempts, lose, names_of, row_of

OOPS = ValueError("no luck")


# The policies


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 5), (2, 10), (3, 20), (8, 600), (32767, 600)])
def test_exponential_doubles_its_base_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert Exponential(base=5, cap=600, jitter=0)(OOPS, attempt) == seconds


@given(
    attempt=st.integers(1, 32_767),
    base=st.floats(0, 1e6),
    cap=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
def test_jitter_draws_its_share_of_the_wait_and_no_more(
    attempt: int, base: float, cap: float, jitter: float
) -> None:
    bound = Exponential(base, cap, jitter=0)(OOPS, attempt)

    wait = Exponential(base, cap, jitter)(OOPS, attempt)

    assert bound * (1 - jitter) * 0.999 <= wait <= bound


def test_jitter_is_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []

    def greatest(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", greatest)

    assert Exponential(base=8, jitter=0.25)(OOPS, 1) == 6
    assert drawn == [(0, 2)]


@pytest.mark.parametrize("delay", [0, 30, 0.5, timedelta(minutes=5)])
def test_fixed_is_always_the_same(delay: float | timedelta) -> None:
    assert [Fixed(delay)(OOPS, attempt) for attempt in (1, 9)] == [delay, delay]


class Stolen(Exception):
    pass


class StolenAbroad(Stolen):
    pass


@pytest.mark.parametrize(
    ("policy", "error", "answer"),
    [
        (GiveUpOn(Stolen, then=Fixed(7)), Stolen(), None),
        (GiveUpOn(Stolen, then=Fixed(7)), StolenAbroad(), None),
        (GiveUpOn(Stolen, then=Fixed(7)), OOPS, 7),
        (GiveUpOn(Stolen, KeyError, then=Fixed(7)), KeyError(), None),
        (RetryOn(Stolen, then=Fixed(7)), StolenAbroad(), 7),
        (RetryOn(Stolen, then=Fixed(7)), OOPS, None),
        (RetryOn(ValueError, then=GiveUpOn(UnicodeError, then=Fixed(7))), OOPS, 7),
        (
            RetryOn(ValueError, then=GiveUpOn(UnicodeError, then=Fixed(7))),
            UnicodeError(),
            None,
        ),
    ],
)
def test_classes_of_errors_are_given_up_on_or_retried(
    policy: RetryPolicy, error: BaseException, answer: float | None
) -> None:
    assert policy(error, 1) == answer


@pytest.mark.parametrize("policy", [GiveUpOn(Stolen), RetryOn(ValueError)])
def test_without_another_the_settings_decide(policy: RetryPolicy, settings: Any) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 0.0, "cap": 60.0}}
    assert policy(OOPS, 5) == 0


@pytest.mark.parametrize(
    ("policy", "arguments", "options"),
    [
        (Exponential, [], {"base": -1}),
        (Exponential, [], {"cap": float("nan")}),
        (Exponential, [], {"jitter": 1.1}),
        (Exponential, [], {"jitter": -0.1}),
        (Fixed, [-1], {}),
        (Fixed, [float("inf")], {}),
        (Fixed, ["30"], {}),
        (GiveUpOn, [], {}),
        (GiveUpOn, ["Stolen"], {}),
        (RetryOn, [Stolen, OOPS], {}),
        (RetryOn, [int], {}),
    ],
)
def test_nonsense_is_refused_where_it_is_written(
    policy: type[Any], arguments: list[Any], options: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError)):
        policy(*arguments, **options)


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (None, None),
        (0, timedelta(0)),
        (1.5, timedelta(seconds=1.5)),
        (timedelta(hours=1), timedelta(hours=1)),
        (timedelta(days=3650), timedelta(days=3650)),
    ],
)
def test_an_answer_is_a_wait_or_none(answer: Any, wait: timedelta | None) -> None:
    assert decide(lambda error, attempt: answer, OOPS, 1) == wait


@pytest.mark.parametrize(
    "answer",
    [-1, "30", True, float("nan"), float("inf"), 1e300, 10**400, timedelta(days=-1), [], object()]
    + [timedelta.max],
)
def test_nonsense_falls_back_to_the_usual_and_is_logged(
    answer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "usual", lambda error, attempt: 3.0)

    assert decide(lambda error, attempt: answer, OOPS, 1) == timedelta(seconds=3)
    assert "task.policy_failed" in logged(caplog)


# What a failure makes of them


@pytest.fixture
def policy(handlers: Handlers) -> Callable[[RetryPolicy], None]:
    """Return a function that gives a retry policy to the handler of the tasks here."""

    def policy(policy: RetryPolicy) -> None:
        known = registry.find("jobs.echo").function
        handlers.add("jobs.echo", known, retry=policy)

    return policy


@pytest.fixture
def task(db: None, handlers: Handlers) -> Task:
    created = make_task(name="jobs.echo", state="running", max_attempts=3)
    return created


Policy = Callable[[RetryPolicy], None]


def test_a_failure_heeds_the_policy_of_its_handler(
    task: Task, policy: Policy, database_clock: DatabaseClock
) -> None:
    asked: list[tuple[BaseException, int]] = []

    def by_hand(error: BaseException, attempt: int) -> timedelta:
        asked.append((error, attempt))
        return timedelta(minutes=7)

    policy(by_hand)

    Task.objects.fail(task, OOPS)

    assert asked == [(OOPS, 1)]
    assert task.scheduled_at == database_clock.now + timedelta(minutes=7)
    assert (task.status, attempts(task)) == (TaskStatus.READY, [(1, "failed")])


def test_no_policy_is_asked_about_a_lost_attempt(task: Task, policy: Policy) -> None:
    asked: list[int] = []
    policy(lambda error, attempt: asked.append(attempt))

    lose(task)

    assert asked == []
    assert (row_of(task)["status"], attempts(task)) == (TaskStatus.READY, [(1, "lost")])


def test_a_policy_that_gives_up_leaves_a_failed_task(
    task: Task, policy: Policy, reported: Reported
) -> None:
    policy(GiveUpOn(Stolen))
    reported.clear()

    Task.objects.fail(task, Stolen("the card"))

    assert (task.status, task.attempts, task.last_error) == ("failed", 1, "Stolen: the card")
    assert names_of(reported) == ["failed"]


def test_no_policy_goes_beyond_the_last_attempt(task: Task, policy: Policy) -> None:
    Task.objects.filter(pk=task.pk).update(max_attempts=1)
    policy(Fixed(0))

    Task.objects.fail(task, OOPS)

    assert task.status == TaskStatus.FAILED


def test_giving_up_is_stronger_than_a_policy(task: Task, policy: Policy) -> None:
    policy(Fixed(0))

    Task.objects.fail(task, GiveUp("no hope"))

    assert task.status == TaskStatus.FAILED


def test_an_error_told_as_text_is_a_task_error_to_the_policy(task: Task, policy: Policy) -> None:
    """As a worker that is no Python program tells it."""
    asked: list[BaseException] = []

    def noting(error: BaseException, attempt: int) -> None:
        asked.append(error)

    policy(noting)

    Task.objects.fail(task, "HTTP 502")

    assert [(type(error), str(error)) for error in asked] == [(TaskError, "HTTP 502")]


@pytest.mark.parametrize("what", [ZeroDivisionError(), SystemExit(1)])
def test_a_policy_that_raises_is_logged_and_the_usual_one_decides(
    task: Task, policy: Policy, caplog: pytest.LogCaptureFixture, what: BaseException
) -> None:
    def broken(error: BaseException, attempt: int) -> float:
        raise what

    policy(broken)

    Task.objects.fail(task, OOPS)

    assert (task.status, task.last_error) == (TaskStatus.READY, "ValueError: no luck")
    assert type(what).__name__ in caplog.text


def test_where_the_handler_is_unknown_the_usual_policy_decides(
    task: Task, handlers: Handlers
) -> None:
    del handlers["jobs.echo"]

    Task.objects.fail(task, OOPS)

    assert task.status == TaskStatus.READY
    assert usual(OOPS, 1) <= 1
