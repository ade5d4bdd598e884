"""A worker of tasks that a service keeps: it claims, runs, renews and ends them over HTTP.

Threads
    caller     claims: by long polls while there is nothing to do, up to a hundred tasks at a time
    task-N     call plain handlers; task-loop runs coroutines
    results    stores outcomes, as many with one request as there are
    keeper     renews all tasks that this process holds with one request, and tells of losses
    end-claim  once the worker is asked to stop, has the service answer the claim that waits there

What happens when it fails
    The service is away: nothing new is claimed, results wait and are sent again. A task is lost
    once its trust has ended, and the service makes it ready again.
    An answer to a claim is lost: the same request is sent again, and finds what it claimed.
    The worker dies: the service recovers its tasks when their leases expire.
    A handler blocks the event loop: its tasks are given back after their ttl.
    A result comes too late: the service refuses it, and the log says so.

The connection of a claim that waits is never closed to end the wait. Behind a thread of WSGI the
service would not see it, and might claim afterwards, for nobody: the task would spend its ttl and
an attempt. So the worker asks for the answer, and waits for it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from leasing.client.calls import STALE_AFTER, wait_allowed
from leasing.client.exceptions import (
    RequestRefused,
    ServiceError,
    ServiceUnavailable,
)
from leasing.client.messages import Request
from leasing.holding.keeper import keeper
from leasing.holding.term import detach_all, keep_all
from leasing.runtime.aio import drive
from leasing.runtime.clock import clock
from leasing.runtime.shutdown import on_stop_signal
from leasing.runtime.threads import Streak, start_thread
from leasing.validation.names import MAX_TASKS, check_duration, check_name, default_holder
from leasing.waiting.waiter import pauses
from tasks.client.calls import Claimed, claiming
from tasks.client.client import TaskClient
from tasks.client.completer import Completer
from tasks.client.execution import STOPPED, Execution, Loop, Threads
from tasks.client.handlers import Handler, Handlers, handlers
from tasks.client.log import log
from tasks.client.store import TaskStore
from tasks.exceptions import UnknownTask

#: Seconds of work, at the present pace, that are claimed ahead of free slots; and tasks, at most.
PREFETCH_SECONDS: Final = 0.25
MAX_PREFETCH: Final = 200
#: Tasks of which the service does not know the outcome, besides one for each slot, at most.
MAX_IN_HAND: Final = MAX_PREFETCH + 2 * MAX_TASKS
#: Seconds between claims of a service that does not let a request wait.
POLL_EVERY: Final = 1.0
#: Seconds between looks at the work in hand, where nothing tells that it has changed.
LOOK_EVERY: Final = 0.2
#: Seconds until a task starts again of which this worker has no handler.
UNKNOWN_DELAY: Final = 60.0
#: Seconds of ``stop_timeout`` that are left to store results.
STORE_PATIENCE: Final = 5.0


class Worker:
    """Runs tasks of a service on this machine, which needs no database.

        worker = Worker(TaskClient("https://tasks.example.com/api", token=token))

        @worker.handler("reports.build")
        def build(ctx, report_id):
            ...

        worker.run()

    Args:
        client: The client of the service.
        handlers: The handlers; by default those of this process: ``@tasks.client.handler(...)``.
        queues: The queues whose tasks it runs; None: all that the token allows.
        concurrency: The number of threads for plain handlers, and of coroutines, that run at once.
        ttl: Seconds of the leases; None: as the service is configured.
        name: The name of the holder; None: that of this process.
        wait: Seconds that a claim waits at the service if there is no task.
        stop_timeout: Seconds from ``stop`` until tasks that have not ended are given back and what
            is known of them is stored.
        prefetch: False: claim only for free slots. By default more is claimed where tasks are
            short, but for tasks with one attempt and those that have run before. A task that dies
            with its worker has spent an attempt, though it had not begun.
    """

    def __init__(
        self,
        client: TaskClient,
        handlers: Handlers = handlers,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 8,
        ttl: float | None = None,
        name: str | None = None,
        wait: float = 5.0,
        stop_timeout: float = 30.0,
        prefetch: bool = True,
    ) -> None:
        if concurrency < 1:
            raise ValueError("The concurrency must be at least 1.")
        self.client = client
        self.handlers = handlers
        self.handler = handlers.handler
        self.name = default_holder() if name is None else check_name(name, "name")
        self._queues = queues
        self._concurrency = concurrency
        self._ttl = None if ttl is None else check_duration(ttl, "ttl").total_seconds()
        self._wait = wait
        self._stop_timeout = stop_timeout
        self._prefetches = prefetch
        self._calls = client.calls
        self._store = TaskStore(client.calls)
        self._completer = Completer(client.calls, self._forget)
        self._threads = Threads(concurrency, self._note_end)
        self._loop = Loop(concurrency, self._note_end)
        self.stopping = threading.Event()
        #: The moment at which ``stop`` was first called; None while it was not.
        self._stopped_at: float | None = None
        self._changed = threading.Condition()
        self._in_hand: set[Execution] = set()
        #: Handlers that run or wait, those of lost tasks among them.
        self._busy = 0
        self._ended = 0
        self._pace = 0.0
        self._pace_at = clock()
        self._streak = Streak()
        self._has_claimed = False
        #: The claim on its way that may wait at the service.
        self._waiting: Request | None = None

    # The caller's thread

    def run(self) -> None:
        """Work until ``stop`` is called, or SIGTERM or SIGINT comes where this is the main thread.
        Raises ServiceError if the first claim shows that the address or the token is wrong."""
        self._work(until_empty=False)

    def drain(self) -> None:
        """Work until the service has no task to run now, and all that were claimed have ended."""
        self._work(until_empty=True)

    def stop(self) -> None:
        """Claim no more, and let ``run`` return once the tasks in hand have ended, or were given
        back after ``stop_timeout``. Call it from any thread."""
        if self._stopped_at is None:
            self._stopped_at = clock()
        self.stopping.set()
        if self._waiting is not None:
            with suppress(RuntimeError):  # there can be no thread more: the claim waits its time
                start_thread("task-end-claim", self._end_wait)
        for execution in list(self._in_hand):
            execution.notified.set()
        with self._changed:
            self._changed.notify_all()

    def _work(self, until_empty: bool) -> None:
        names = ", ".join(sorted(self.handlers)) or "none"
        log.worker_started(worker=self.name, url=self.client.transport.url, handlers=names)
        keeper.start()
        self._completer.start()
        with on_stop_signal(self.stop, insisted_upon=True):
            try:
                self._claim_on(until_empty)
            finally:
                self.stopping.set()
                self._end()

    def _claim_on(self, until_empty: bool) -> None:
        request: Request | None = None
        while not self.stopping.is_set():
            is_sent = request is not None
            if request is None:
                room, free = self._room()
                if room <= 0 or keeper.draining:
                    self._sleep(LOOK_EVERY)
                    continue
                wait = 0.0 if until_empty else self._wait
                request = claiming(
                    self.name, room, queues=self._queues, ttl=self._ttl, wait=wait, free=free
                )
            self._waiting = request if request.wait else None
            if self.stopping.is_set():  # ``stop`` may have come too early to see that it waits
                self._waiting, request = None, request if is_sent else None
                break
            try:
                claimed, pause = self._claim(request)
            except ServiceError as error:
                if isinstance(error, RequestRefused) and request.wait:
                    allowed = wait_allowed(error)
                    if allowed is not None and allowed < request.wait:
                        self._wait, request = allowed, None
                        continue
                if isinstance(error, RequestRefused) and error.status == 409:
                    request = None  # its tasks have ended before the answer arrived: claim others
                    self.stopping.wait(LOOK_EVERY)
                    continue
                if not isinstance(error, ServiceUnavailable):
                    if not self._has_claimed:
                        raise
                    request = None  # it was answered
                self._pause(error)
                continue
            began_at, sent, request = clock(), request, None
            self._has_claimed = True
            self._streak.succeeded()
            if claimed:
                self._begin(claimed)
            elif until_empty:
                if not self._in_hand:
                    return
                self._sleep(LOOK_EVERY)
            elif pause or clock() - began_at < sent.wait / 2:
                # A service that let the request wait was asked for long enough.
                idle = pause or (0.0 if sent.wait else POLL_EVERY)
                self.stopping.wait(idle * random.uniform(0.75, 1.25))
        if request is not None:
            self._recall(request)

    def _claim(self, request: Request) -> tuple[list[Claimed], float]:
        try:
            return drive(self._calls.claim(request, self.stopping))
        finally:
            with self._changed:
                self._waiting = None
                self._changed.notify_all()

    def _end_wait(self) -> None:
        """Ask for the answer of the claim that waits, until it is there: it may be on its way to
        the service yet."""
        for pause in pauses():
            with self._changed:
                request = self._waiting
            if request is None:
                return
            try:
                drive(self._calls.end_wait(request))
            except ServiceError:
                return  # nothing is lost: the claim ends with its wait
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is None, pause)

    def _pause(self, error: Exception) -> None:
        pause = self._streak.failed(error)
        log.worker_claim_failed(level=self._streak.level, pause_seconds=pause, error=error)
        self.stopping.wait(pause)

    def _recall(self, request: Request) -> None:
        """Give back what an unanswered claim may have claimed: the same request finds it."""
        assert isinstance(request.body, dict)
        body = {name: value for name, value in request.body.items() if name != "wait"}
        try:
            again = replace(request, body=body, wait=0.0)
            claimed, _ = drive(self._calls.claim(again, self.stopping))
        except ServiceError as error:
            if not (isinstance(error, RequestRefused) and error.status == 409):  # nothing is left
                log.worker_recall_failed(error=error)
        else:
            self._begin(claimed)  # whose handlers are not called any more

    def _room(self) -> tuple[int, int]:
        """Return the number of tasks to claim now, and how many of them begin at once."""
        with self._changed:
            if self._loop.is_blocked or len(self._in_hand) >= MAX_IN_HAND + self._concurrency:
                return 0, 0
            ahead = self._ahead() if self._prefetches else 0
            free = self._concurrency - self._busy
            if ahead and -free * 2 > ahead:
                return 0, 0  # many with one request, rather than few with many
            return free + ahead, max(0, free)

    def _ahead(self) -> int:
        now = clock()
        if (passed := now - self._pace_at) >= LOOK_EVERY:
            self._pace, self._ended, self._pace_at = self._ended / passed, 0, now
        pace = max(self._pace, self._ended / max(passed, 0.01) if self._ended > 8 else 0.0)
        return min(MAX_PREFETCH, int(pace * PREFETCH_SECONDS))

    def _begin(self, claimed: Sequence[Claimed]) -> None:
        executions = []
        # What may not wait for a slot was claimed for a free one: it comes first.
        for each in sorted(self._fresh(claimed), key=_may_wait):
            try:
                handler = self.handlers.find(each.task.name)
            except UnknownTask:
                log.task_no_handler(each)
                handler = None
            execution = Execution(
                each,
                handler or _NONE,
                self._store,
                self._calls,
                self._completer,
                self.stopping,
                self._forget,
            )
            executions.append(execution)
        with self._changed:
            self._busy += len(executions)
            busy = self._busy
            self._in_hand.update(executions)
        keep_all([each.hold for each in executions])
        for execution in executions:
            if execution.handler is _NONE:
                reason = f"No handler is registered for {execution.claimed.task.name!r}."
                execution.give_back(reason, delay=UNKNOWN_DELAY, begun=True)
                self._note_end()
            elif execution.handler.is_async:
                self._loop.submit(execution)
            else:
                self._threads.submit(execution, busy)

    def _fresh(self, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Renew what was claimed by a request that waited: trust counts from before it was sent."""
        term = claimed[0].term if claimed else None
        if term is None or clock() - term.sent_at < STALE_AFTER * term.ttl:
            return claimed
        sent_at = clock()
        try:
            renewed = drive(self._calls.heartbeat_many([each.term.key for each in claimed]))
        except ServiceError as error:
            self._pause(error)
            return claimed  # trusted for as long as it was
        fresh = []
        for each in claimed:
            renewal = renewed.renewed.get(each.term.key)
            if renewal is not None:
                each.term.extend(sent_at, renewal)
                fresh.append(each)
            elif (reason := renewed.lost.get(each.term.key)) is not None:
                log.task_lost(each, reason=reason)
            else:
                fresh.append(each)  # not answered: trusted for as long as it was
        return fresh

    def _note_end(self) -> None:
        with self._changed:
            self._busy -= 1
            self._ended += 1
            if self._busy <= self._concurrency or self._ended % 16 == 0:
                self._changed.notify_all()

    def _forget(self, executions: Sequence[Execution]) -> None:
        """Renew them no more: the service knows their outcomes, or will find them out."""
        detach_all([each.hold for each in executions])
        with self._changed:
            self._in_hand.difference_update(executions)
            self._changed.notify_all()

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            if not self.stopping.is_set():
                self._changed.wait(seconds)

    # The end

    def _end(self) -> None:
        log.worker_stopping(worker=self.name, tasks=len(self._in_hand))
        for execution in list(self._in_hand):
            if not execution.has_begun:
                execution.give_back(STOPPED, begun=False)
        began_at = clock() if self._stopped_at is None else self._stopped_at  # a claim has waited
        until = began_at + max(0.0, self._stop_timeout - STORE_PATIENCE)
        with self._changed:
            while self._in_hand and clock() < until:
                self._changed.wait(min(LOOK_EVERY, max(0.0, until - clock())))
        for execution in list(self._in_hand):
            execution.give_back(STOPPED)
            if execution.interrupt is not None:
                execution.interrupt()
        self._completer.stop(STORE_PATIENCE)
        # The service recovers what is left.
        detach_all([execution.hold for execution in list(self._in_hand)])
        self._threads.close()
        self._loop.close()
        log.worker_stopped(worker=self.name)


def _may_wait(claimed: Claimed) -> bool:
    """Return True if the task has not run before, and will run again if its worker dies."""
    return claimed.task.attempts == 1 < claimed.task.max_attempts


#: In place of the handler of a task that has none here.
_NONE: Final = Handler("", lambda context: None, None)
