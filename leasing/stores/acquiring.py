"""The acquire loop, written once for threads and coroutines and for every store: an attempt, then
a wait for the holder and another attempt, until the lease is granted or the wait is over."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.exceptions import LeaseHeld, LeaseTimeout
from leasing.notifier import waiting
from leasing.runtime import clock, probes
from leasing.runtime.aio import Steps, Undoable
from leasing.validation.names import check_duration


def taking(
    using: str,
    resource: str,
    wait: Wait,
    attempt: Undoable,
    *,
    say_wanted: Callable[[], object] | None = None,
    stopping: threading.Event | None = None,
) -> Steps[Any]:
    """Steps that acquire ``resource``, for a driver.

    Args:
        using: The database whose releases wake a waiter.
        resource: The name that is waited for.
        wait: Seconds to wait for the holder; None: for ever.
        attempt: Acquires at once, or raises LeaseHeld.
        say_wanted: Marks the resource as waited for, before each pause, so that its releases are
            notified for; None: they are not.
        stopping: An event that ends the wait with LeaseTimeout.
    """
    if wait is DEFAULT:
        wait = leasing_settings.WAIT
    patience = math.inf if wait is None else check_duration(wait, "wait").total_seconds()
    try:
        taken = yield attempt
        return taken
    except LeaseHeld:
        if not patience:
            raise
    began_at = clock.clock()

    def attempt_again() -> Any:
        try:
            return attempt()
        except LeaseHeld:
            if waiter.left and say_wanted is not None:
                say_wanted()  # here, for a thread of async code opens a connection for each call
            raise

    until, is_announced = began_at + patience, say_wanted is not None
    with waiting(using, resource, until, stopping, is_announced=is_announced) as waiter:
        if say_wanted is not None:
            yield say_wanted
        while True:
            yield waiter
            if waiter.stopped:
                raise LeaseTimeout(resource, waited=clock.clock() - began_at)
            try:
                taken = yield Undoable(attempt_again, attempt.undo)
                return taken
            except LeaseHeld as held:
                if not waiter.left:
                    waited = clock.clock() - began_at
                    known = held.holder, held.expires_at, waited, held.remaining
                    raise LeaseTimeout(resource, *known) from held


def timed(model: type[Any], steps: Steps[Any]) -> Steps[Any]:
    """The same ``steps`` of acquiring a row of ``model``; probes are told how long they took."""
    began_at, outcome = clock.clock(), "other"
    try:
        taken = yield from steps
        outcome = "acquired" if taken.previous_expired_at is None else "taken_over"
        return taken
    except LeaseTimeout:
        outcome = "timed_out"
        raise
    except LeaseHeld:
        outcome = "held"
        raise
    finally:
        probes.acquiring(model, outcome, clock.clock() - began_at)
