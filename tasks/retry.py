"""Retry policies: decide when to retry, by the error and the number of the failed attempt.

A policy is any callable like RetryPolicy. Those below can be nested:

    GiveUpOn(CardStolen, then=Exponential(base=5, cap=600))
    RetryOn(ConnectionError, TimeoutError, then=Fixed(30))

Without another policy ``usual`` decides, by the settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from tasks.bounds import check_delay
from tasks.conf import task_settings
from tasks.log import log


class RetryPolicy(Protocol):
    """Decides how long to wait after a failed attempt."""

    def __call__(self, error: BaseException, attempt: int) -> float | timedelta | None:
        """Return the seconds (or a timedelta) until the next attempt; None gives up. ``attempt`` is
        the number of the failed attempt; the first is 1."""


#: Draws a number between two others, evenly.
draw: Callable[[float, float], float] = random.uniform


def usual(error: BaseException, attempt: int) -> float:
    """Return the pause by TASK_QUEUE["BACKOFF"], for any error."""
    return usual_pause(attempt)


def usual_pause(attempt: int) -> float:
    """Return the seconds to wait after this ``attempt`` failed or was lost, by
    TASK_QUEUE["BACKOFF"]: drawn from all of the bound ("full jitter"), so that tasks that failed
    together are not retried together."""
    return draw(0.0, longest_pause(attempt))


def longest_pause(attempt: int) -> float:
    """Return the greatest result of ``usual_pause``, which doubles with each attempt."""
    bounds = task_settings.BACKOFF
    return _bound(attempt, bounds["base"], bounds["cap"])


def _bound(attempt: int, base: float, cap: float) -> float:
    return min(cap, base * 2.0 ** min(attempt - 1, 60))


@dataclass(frozen=True)
class Exponential:
    """``base`` seconds, doubled with each attempt, at most ``cap``. ``jitter`` is the share of
    the pause that is random: 1 is all of it, 0 nothing."""

    base: float = 1.0
    cap: float = 3600.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        check_delay(self.base)
        check_delay(self.cap)
        if not 0 <= self.jitter <= 1:
            raise ValueError("The jitter must be from 0 to 1.")

    def __call__(self, error: BaseException, attempt: int) -> float:
        bound = _bound(attempt, self.base, self.cap)
        return bound - random.uniform(0.0, bound * self.jitter)


@dataclass(frozen=True)
class Fixed:
    """Always the same ``delay`` (seconds, or a timedelta)."""

    delay: float | timedelta

    def __post_init__(self) -> None:
        check_delay(self.delay)

    def __call__(self, error: BaseException, attempt: int) -> float | timedelta:
        return self.delay


class _ByClass:
    """A policy that depends on the class of the error."""

    def __init__(self, *errors: type[BaseException], then: RetryPolicy = usual) -> None:
        if not errors or not all(
            isinstance(each, type) and issubclass(each, BaseException) for each in errors
        ):
            raise TypeError("Pass one or more exception classes.")
        self.errors = errors
        self.then = then


class GiveUpOn(_ByClass):
    """Gives up on errors of these classes; ``then`` decides about all others."""

    def __call__(self, error: BaseException, attempt: int) -> float | timedelta | None:
        return None if isinstance(error, self.errors) else self.then(error, attempt)


class RetryOn(_ByClass):
    """``then`` decides about errors of these classes; gives up on all others."""

    def __call__(self, error: BaseException, attempt: int) -> float | timedelta | None:
        return self.then(error, attempt) if isinstance(error, self.errors) else None


def decide(policy: RetryPolicy, error: BaseException, attempt: int) -> timedelta | None:
    """Return the pause before the next attempt; None to give up. If the policy raises or returns
    something else, the default policy decides.

    Args:
        policy: The policy that is asked.
        error: The error of the attempt.
        attempt: The number of the attempt, from 1.
    """
    try:
        answer = policy(error, attempt)
        return None if answer is None else check_delay(answer)
    except (Exception, SystemExit):  # SystemExit would end a thread of the worker
        log.task_policy_failed(policy=repr(policy), attempt=attempt, exc_info=True)
        return timedelta(seconds=usual(error, attempt))
