"""Acquiring with a wait: an attempt, then a wait for the holder and another attempt.

Callers of this process that wait for a resource are woken when it is released: by a call within the
process, and by PostgreSQL's notifications from others (``leasing.waiting.listener``).
"""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.exceptions import LeaseHeld, LeaseTimeout
from leasing.runtime import clock
from leasing.runtime.aio import Steps, Undoable
from leasing.validation.names import check_duration
from leasing.waiting.listener import Listener
from leasing.waiting.waiter import Waiter


class Notifier:
    """The waiters of one database, by resource, and what wakes them."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.forget()

    def forget(self) -> None:
        """Start over, in a forked child: the waiters and the thread are the parent's."""
        self._lock = threading.Lock()
        #: Of each resource, who has waited longest first.
        self.waiters: defaultdict[str, list[Waiter]] = defaultdict(list)
        waiters = self.waiters
        self.listener = Listener(self.using, self.notify, lambda: bool(waiters), self._lock)

    def add(self, resource: str, waiter: Waiter) -> None:
        with self._lock:
            self.waiters[resource].append(waiter)
            self.listener.start()

    def remove(self, resource: str, waiter: Waiter) -> None:
        with self._lock:
            waiting = self.waiters[resource]
            if waiter in waiting:
                waiting.remove(waiter)
            if not waiting:
                del self.waiters[resource]

    def notify(self, resource: str) -> None:
        """Wake the caller that has waited longest."""
        with self._lock:
            waiting = self.waiters.get(resource)
            if waiting:
                waiting[0].notify()

    def ahead_of(self, waiter: Waiter) -> int:
        """Return the number of waiters that a notification wakes before ``waiter``; 0 where
        notifications do not arrive."""
        if not self.listener.arrives:
            return 0
        with self._lock:
            waiting = self.waiters.get(waiter.resource, [])
            return waiting.index(waiter) if waiter in waiting else 0


_notifiers: dict[str, Notifier] = {}


def notifier(using: str) -> Notifier:
    """The notifier of the database ``using``."""
    return _notifiers.get(using) or _notifiers.setdefault(using, Notifier(using))


def notify(using: str, resource: str) -> None:
    """Wake the caller of this process that has waited longest for ``resource`` of the database
    ``using``."""
    known = _notifiers.get(using)
    # Where nobody waits yet a caller that comes now comes after it.
    if known is not None and known.waiters:
        known.notify(resource)


@contextmanager
def waiting(
    using: str,
    resource: str,
    until: float,
    stopping: threading.Event | None = None,
    *,
    is_announced: bool = False,
) -> Iterator[Waiter]:
    """A waiter for ``resource`` that is woken by releases while the block runs.

    Args:
        using: the database of the resource.
        resource: the name that is waited for.
        until: moment on the holder's clock at which the wait ends.
        stopping: event that ends each pause.
        is_announced: True if each release of the resource, in any process, is notified for.
    """
    waiter, waiters = Waiter(until, stopping, resource), notifier(using)
    if is_announced:
        waiter.ahead = partial(waiters.ahead_of, waiter)
    waiters.add(resource, waiter)
    try:
        yield waiter
    except BaseException:
        waiters.remove(resource, waiter)
        # It may have been notified and then not have come: let the next one look.
        waiters.notify(resource)
        raise
    waiters.remove(resource, waiter)


def _forget() -> None:
    for known in _notifiers.values():
        known.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def taking(
    using: str,
    resource: str,
    wait: Wait,
    attempt: Undoable,
    *,
    mark_wanted: Callable[[], object] | None = None,
    stopping: threading.Event | None = None,
) -> Steps[Any]:
    """Steps that acquire ``resource``, for a driver.

    Args:
        using: The database whose releases wake a waiter.
        resource: The name that is waited for.
        wait: Seconds to wait for the holder; None: for ever.
        attempt: Acquires at once, or raises LeaseHeld.
        mark_wanted: Marks the resource as waited for, before each pause, so that its releases are
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
            if waiter.left and mark_wanted is not None:
                mark_wanted()  # here, for a thread of async code opens a connection for each call
            raise

    until, is_announced = began_at + patience, mark_wanted is not None
    with waiting(using, resource, until, stopping, is_announced=is_announced) as waiter:
        if mark_wanted is not None:
            yield mark_wanted
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
