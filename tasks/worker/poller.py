"""Decide when a worker polls for tasks: when it is woken, or else when the next poll is due."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from django.db import Error

from leasing.conf import leasing_settings
from leasing.runtime.clock import clock
from leasing.waiting.listener import can_listen
from tasks.conf import task_settings
from tasks.models import Task
from tasks.notifier import SECOND_POLL_AFTER, Listener, waited_for
from tasks.querysets import TaskQuerySet
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.registry import KINDS
from tasks.runtime.service_threads import ServiceThreads

#: The factor by which the time between polls grows while notifications arrive.
WHILE_HEARING = 5.0
#: Seconds that a worker with free slots of one kind waits for slots of another, before it asks when
#: the next task for the free ones is due.
ASK_AFTER = 0.02
#: Seconds for which that answer is good, unless its moment has come: slots may become free many
#: times a second.
ASK_EVERY = 0.25
#: A priority above those of all tasks.
ABOVE_ALL = 32768


class Poller:
    """Wakes a worker that serves ``queues``, until it has ``ended``. ``renew_now`` is called with
    the key of a task that was asked to stop."""

    def __init__(
        self, queues: Sequence[str], ended: threading.Event, renew_now: Callable[[str], object]
    ) -> None:
        self.listener = Listener(leasing_settings.DATABASE, self.hear, ended)
        self._queues = queues
        self._renew_now = renew_now
        #: The beginning of the latest look.
        self._looked_at = clock()
        #: Set: there is a reason to look.
        self._reason = threading.Event()
        self._lock = threading.Lock()
        self._look_again_at: float | None = None
        #: The highest priority that was heard of in each queue since the last ``take_heard``; and
        #: since the last second look.
        self._heard: dict[str, int] = {}
        self._heard_lately: dict[str, int] = {}
        #: The position of the worker's claims.
        self.cursor = ClaimCursor()
        #: True if the next claim is to begin at the beginning.
        self._begins_again = False
        #: When a task of which kinds is due, and since when that is known: see ``wait_busy``.
        self._next_due_at, self._asked_at = float("-inf"), float("-inf")
        self._asked_kinds: Sequence[int] = ()

    def listen(self, threads: ServiceThreads) -> None:
        """Hear notifications on a thread of their own, where there are any."""
        if can_listen(self.listener.using):
            threads.start("notifier", self.listener.service)

    def wake(self) -> None:
        """Make the worker look now."""
        self._reason.set()

    def hear(self, message: str) -> None:
        """Wake the worker, if ``message`` is for it."""
        what, _, which = message.partition(" ")
        if what == "task":
            self._renew_now(which)
        elif what == "wait":
            waited_for.add(which)
        elif what == "all":
            self._begins_again = True
            self._look_soon({})
        elif what == "queue":
            number, _, queue = which.partition(" ")
            with suppress(ValueError):  # any session of the database can send on this channel
                if queue in self._queues:
                    self._look_soon({queue: int(number)})

    def _look_soon(self, heard: Mapping[str, int]) -> None:
        with self._lock:
            for queue, priority in heard.items():
                _note(self._heard, queue, priority)
                _note(self._heard_lately, queue, priority)
            self._look_again_at = clock() + SECOND_POLL_AFTER
        self.wake()

    def take_heard(self) -> dict[str, int]:
        """Return the highest priority of what has become ready in each queue, as far as was heard
        since the last call. The claim that follows begins at the beginning where that matters."""
        if self._begins_again:
            self._begins_again = False
            for queue in self._queues:
                self.cursor.end_below(queue, ABOVE_ALL)
        with self._lock:
            heard, self._heard = self._heard, {}
        for queue, priority in heard.items():
            self.cursor.end_below(queue, priority)
        return heard

    def begin_look(self) -> None:
        """The worker is about to look: what wakes it from here on is a reason to look again."""
        self._reason.clear()
        self._looked_at = clock()
        with self._lock:
            # The second look after a notification is due, or is not yet. What came just after was
            # not notified, and may go before what waits here as well.
            if self._look_again_at is not None and clock() >= self._look_again_at:
                self._look_again_at = None
                for queue, priority in self._heard_lately.items():
                    _note(self._heard, queue, priority)
                self._heard_lately = {}

    def wait(self, seconds: float) -> bool:
        """Wait until something wakes it, for ``seconds`` at most. Whether anything did."""
        return self._reason.wait(seconds)

    def pause(self, *, asks: bool = True) -> float:
        """Seconds until the next look, unless something wakes it before. Unless it ``asks`` what is
        due later, it is POLL_EVERY at most."""
        pause: float = task_settings.POLL_EVERY
        if asks:
            pause *= (WHILE_HEARING if self.listener.hears else 1.0) * random.uniform(0.8, 1.0)
        look_again_at = self._look_again_at
        if look_again_at is not None:
            return min(pause, max(0.001, look_again_at - clock()))
        return self._due_in(pause, KINDS) if asks and self.listener.hears else pause

    def wait_busy(self, seconds: float, kinds: Sequence[int]) -> None:
        """Wait as ``wait`` does, but no longer than until a task of these ``kinds`` is due: there
        is room for them while others have none. Most waits end at once, and ask nothing."""
        if self.wait(min(seconds, ASK_AFTER)) or seconds <= ASK_AFTER:
            return
        seconds -= ASK_AFTER
        if self.listener.hears and kinds:
            with suppress(Error):  # the next look finds out how it stands with the database
                seconds = min(seconds, self._due_in_lately(seconds, kinds))
        self.wait(seconds)

    def _due_in_lately(self, seconds: float, kinds: Sequence[int]) -> float:
        """Return the time until a task of these ``kinds`` is due, ``seconds`` at most, as it was
        known ASK_EVERY ago at most."""
        now = clock()
        is_known = kinds == self._asked_kinds and now < min(
            self._next_due_at, self._asked_at + ASK_EVERY
        )
        if not is_known:
            self._next_due_at = now + self._due_in(seconds, kinds)
            self._asked_at, self._asked_kinds = now, kinds
        return max(0.001, self._next_due_at - now)

    def _due_in(self, seconds: float, kinds: Sequence[int]) -> float:
        """Return the time until a task of these ``kinds`` is due, ``seconds`` at most."""
        rows = self._tasks() if kinds is KINDS else self._tasks().filter(kind__in=kinds)
        # What became due since the look began was perhaps not seen by it.
        due_in = rows.next_due_in(seconds, clock() - self._looked_at)
        return seconds if due_in is None else max(0.001, due_in)

    def rest(self, seconds: float, is_idle: Callable[[], bool]) -> None:
        """Wait until something wakes it, or it is time to look. As long as it ``is_idle`` and
        notifications arrive, a query tells every so many ``seconds`` whether there is anything to
        look for: less than a claim that finds nothing."""
        while not self.wait(seconds) and seconds >= task_settings.POLL_EVERY:
            if not (self.listener.hears and is_idle()):
                break
            with suppress(Error):  # to look is to find out how it stands with the database
                if not self._tasks().are_due_within(seconds):
                    continue
            break

    def _tasks(self) -> TaskQuerySet:
        return Task.objects.home().filter(queue__in=self._queues)


def _note(heard: dict[str, int], queue: str, priority: int) -> None:
    """Note that a task of ``priority`` became ready in ``queue``."""
    heard[queue] = max(priority, heard.get(queue, priority))
