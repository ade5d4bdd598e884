"""Wake waiting workers: by notification on PostgreSQL, and within a process on any database.

An enqueue notifies when its transaction has committed, so a worker that wakes up finds the task. A
process notifies about once per WINDOW for each queue, and at once of a higher priority than the
last. Every notified worker polls again a little more than a WINDOW later, and finds what was
enqueued meanwhile. A lost notification delays a task until the next poll.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from django.db import Error, connections

from leasing.db.dialects import CHANNEL as RELEASED
from leasing.db.dialects import after_commit
from leasing.runtime.clock import clock
from leasing.runtime.services import Service
from leasing.runtime.threads import LONGEST_PAUSE
from leasing.waiting.listener import Notifications, listening, notify_trial
from leasing.waiting.notifier import notifier as waiters
from tasks.log import log

CHANNEL = "leasing_tasks_notify"
#: Seconds for which one notification of a queue is enough. It limits how many a process sends, and
#: how late a worker finds a task that was enqueued just after another.
WINDOW = 0.01
#: Seconds after the last one in which a statement of its own brings the next: by the time it is
#: stored the window is over, and a notification apart costs as much as storing a task.
IN_STATEMENT_WINDOW = 0.6 * WINDOW
#: Seconds after which a notified worker polls again.
SECOND_POLL_AFTER = 1.2 * WINDOW
#: Seconds for which a process remembers that somebody waits for the end of a task.
WAITED_FOR = 60.0

#: Hears a message: "queue 5 default" of a task of priority 5, "all" of tasks that go before those
#: claimed last, "task 17" for one that was asked to cancel, or "wait /api/tasks/17" for one whose
#: end is waited for.
OnMessage = Callable[[str], object]


class NotifyLimiter:
    """The listeners of this process, and the moment at which it last notified each queue, with the
    priority."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all, in a forked child: the listeners are the parent's."""
        self._lock = threading.Lock()
        self._notified: dict[tuple[str, str], tuple[float, int]] = {}
        self._here: list[OnMessage] = []

    @contextmanager
    def heard_by(self, hear: OnMessage) -> Iterator[None]:
        """In this block, call ``hear`` with each notification from this process."""
        with self._lock:
            self._here.append(hear)
        try:
            yield
        finally:
            with self._lock:
                self._here.remove(hear)

    def notify_here(self, message: str) -> None:
        """Tell the listeners of this process."""
        with self._lock:
            here = list(self._here)
        for hear in here:
            hear(message)

    def notify(self, using: str, message: str) -> None:
        """Tell the listeners of this process and, over the connection ``using``, all others."""
        self.notify_here(message)
        _send(using, CHANNEL, message)

    def is_due(self, using: str, queue: str, priority: int, window: float = WINDOW) -> bool:
        """Return True if ``queue`` may be notified, and count it as notified: within ``window``
        seconds it was not, or of a lower ``priority``."""
        now = clock()
        with self._lock:
            last = self._notified.get((using, queue))
            if last is not None and now - last[0] < window and priority <= last[1]:
                return False
            self._notified[using, queue] = now, priority
            return True


limiter = NotifyLimiter()


class WaitedFor:
    """The tasks whose end is waited for in some process, by the resources of their leases, as far
    as this process has heard."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all, in a forked child: those who wait are notified by the parent."""
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def add(self, resource: str) -> None:
        now = clock()
        with self._lock:
            self._until = {each: until for each, until in self._until.items() if until > now}
            self._until[resource] = now + WAITED_FOR

    def take(self, resources: Iterable[str]) -> list[str]:
        """Return those of ``resources`` that are waited for, and forget them."""
        with self._lock:
            return [each for each in resources if self._until.pop(each, None) is not None]


waited_for = WaitedFor()

if hasattr(os, "register_at_fork"):
    for each in (limiter, waited_for):
        os.register_at_fork(after_in_child=each.forget)


class Queued(Protocol):
    """A row with a queue and a priority."""

    @property
    def queue(self) -> str: ...
    @property
    def priority(self) -> int: ...


def notify(using: str, tasks: Iterable[Queued]) -> None:
    """Wake the workers that wait for ``tasks``, once they are there to stay."""
    highest: dict[str, int] = {}
    for task in tasks:
        highest[task.queue] = max(task.priority, highest.get(task.queue, task.priority))
    notify_queues(using, highest)


def notify_queues(using: str, highest: Mapping[str, int]) -> None:
    """Wake the workers that serve these queues, each with the highest priority of what is new
    there, once what was written is there to stay."""

    def send() -> None:
        for queue, priority in sorted(highest.items()):
            notify_now(using, queue, priority)

    if highest:
        after_commit(using, send)


def notify_all(using: str) -> None:
    """Have all workers look from the beginning: tasks that were given back stand before those that
    they have claimed since. What was written is there to stay."""
    limiter.notify(using, "all")


def notify_now(using: str, queue: str, priority: int = 0) -> None:
    """Wake the workers that serve ``queue``: what was written is there to stay."""
    if limiter.is_due(using, queue, priority):
        limiter.notify(using, message_of(queue, priority))


def message_of(queue: str, priority: int) -> str:
    """Return the message that wakes the workers of ``queue``."""
    return f"queue {priority} {queue}"  # in this order: names may have spaces


def notify_holders(using: str, keys: Iterable[Any]) -> None:
    """Notify the holders of the tasks with ``keys`` at once that these were asked to stop."""
    messages = [f"task {key}" for key in keys]

    def send() -> None:
        for message in messages:
            limiter.notify(using, message)

    if messages:
        after_commit(using, send)


def ask_for_end(using: str, resource: str) -> None:
    """Ask all workers to notify those who wait for the task of ``resource`` when it has ended."""
    limiter.notify(using, f"wait {resource}")


def notify_ended(using: str, resources: Iterable[str]) -> None:
    """Notify those who wait for the tasks of ``resources``, whose ends are there to stay."""
    for resource in waited_for.take(resources):
        waiters(using).notify(resource)
        _send(using, RELEASED, resource)


def _send(using: str, channel: str, message: str) -> None:
    connection = connections[using]
    # In a block that a TestCase wraps around a test nothing is ever committed.
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, message])
    except Error as error:  # what it is about is stored: a poll will find it
        log.notifications_unsent(notification=message, error=error)


class Listener:
    """Listens on a connection of its own, which it opens again when it broke."""

    #: Seconds a proof may take to arrive, and between looks whether the worker has ended.
    arrival = 1.0
    #: Seconds between proofs that notifications still arrive.
    proof_every = 30.0

    def __init__(self, using: str, hear: OnMessage, ended: threading.Event) -> None:
        self.using = using
        self._hear = hear
        self._ended = ended
        #: True if notifications are known to arrive: behind a pooler in transaction mode they do
        #: not.
        self.hears = False
        #: True if the latest proof did not arrive, which was logged.
        self._is_swallowed = False
        #: The number of proofs in a row that did not arrive.
        self._deaf = 0
        #: Its ticks last as long as the connection does its duty, so it needs a thread of its own.
        self.service = Service(self._listen, log.notifications_failed, expected=(Exception,))

    def _listen(self) -> float:
        try:
            self._listen_once()
        finally:
            self.hears = False
        return min(LONGEST_PAUSE, self.arrival * 2.0 ** min(self._deaf, 10))

    def _listen_once(self) -> None:
        """Listen for as long as the connection does its duty."""
        with listening(self.using, CHANNEL) as raw, Notifications(raw) as notes:
            while self._prove(notes):
                self._take(notes, clock() + self.proof_every)
                if self._ended.is_set():
                    break

    def _prove(self, notes: Notifications) -> bool:
        """Return True if a notification from another connection arrives here."""
        trial = notify_trial(self.using, CHANNEL)
        # Not before: LISTEN_URL may lead to a server that answers while the pooler is away.
        self.service.failures.succeeded()
        connections[self.using].close()  # or it would idle until the next proof
        heard = self._take(notes, clock() + self.arrival, until=trial)
        self._deaf = 0 if heard else self._deaf + 1
        if self.hears != heard:
            self.hears = heard
            self._hear("all")  # what came while nobody listened
        if not self._ended.is_set():
            self._log_change(heard)
        return heard

    def _log_change(self, heard: bool) -> None:
        if self._is_swallowed == heard:
            self._is_swallowed = not heard
            (log.notifications_arrive if heard else log.notifications_swallowed)()

    def _take(self, notes: Notifications, deadline: float, until: str = "") -> bool:
        """Pass on what comes before ``deadline``; stop at the message ``until``, if it comes."""
        while (left := deadline - clock()) > 0 and not self._ended.is_set():
            came = notes.within(min(self.arrival, left))
            for payload in came:
                if not payload.startswith(" "):  # a trial, here or elsewhere
                    self._hear(payload)
            if until in came:
                return True
        return False
