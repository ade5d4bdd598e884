"""A worker process: claims tasks, runs them, and recovers those of others.

    main thread    claims for the executors that have room, while renewals succeed and results can
                   be stored
    executors      run the tasks: threads (``threads``), the event loop (``coroutines``), child
                   processes (``processes``)
    completer      stores their outcomes, many together (``tasks.execution.completer``)
    keeper         renews all of them in one statement (``leasing.holding.keeper``)
    timeouts       fails attempts that run too long (``timeouts``)
    notifier       wakes the main thread when something was enqueued (``tasks.notifier``)
    services       recovers tasks whose holder is gone, keeps this worker's row up to date, enqueues
                   the tasks of due schedules, and records samples for the charts
    housekeeping   examines and prunes, in one of all workers (``tasks.maintenance.services``)
    watcher        replaces any of these threads that has ended, and gives back its tasks; the
                   others replace the watcher (``tasks.runtime.service_threads``)
    receivers      call ``on_end`` and the receivers of signals (``leasing.runtime.threads``)

After SIGTERM or SIGINT the worker claims nothing more and lets its tasks run until a deadline. Then
coroutines are cancelled, processes killed, and all that is left is given back without spending an
attempt. A second signal skips the wait. Threads cannot be killed: a handler that still runs in one
ends with the process, and its result is refused.

A worker exits, to be restarted by its supervisor, if the tasks of all its threads ended long ago
but their handlers still run, or if it could store no result for long although the database answers.

The file is long, for one class has all that a look at the queues decides by.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from django.db import Error, connections

from leasing.functions import database_now
from leasing.holding.keeper import keeper
from leasing.holding.term import keep_all
from leasing.runtime.clock import clock
from leasing.runtime.services import Service
from leasing.runtime.threads import apart
from leasing.validation.names import unique_name
from tasks.conf import task_settings
from tasks.execution.attempt import COMPLETE, Attempt, Outcome
from tasks.execution.chaos import Chaos
from tasks.execution.runner import STOPPED, time_out
from tasks.log import log
from tasks.maintenance import services
from tasks.models import Queue, Task
from tasks.notifier import limiter
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Kind
from tasks.runtime import marks
from tasks.runtime.connection import handlers_limited, lasting_connection
from tasks.runtime.memory import resident_mib
from tasks.runtime.service_threads import PATIENCE, ServiceThreads, Watched
from tasks.runtime.timing import USUAL, Timing
from tasks.sample import own_handlers
from tasks.worker.executor import Executor
from tasks.worker.executors import Executors
from tasks.worker.hand_back import give_back, give_back_all, give_up
from tasks.worker.health import WorkerHealth
from tasks.worker.poller import Poller
from tasks.worker.registration import WorkerRegistration
from tasks.worker.timeouts import Timekeeper

#: The number of tasks that one statement gives back while others may wait for them.
RETURNED_TOGETHER = 250
#: Why tasks that were claimed ahead go back.
WAITED = "its worker had no free slot for it"
#: The reason why tasks go back whose handler was of another kind when they were enqueued.
MOVED = "its worker had no free slot of its handler's kind"


class Until(StrEnum):
    """The condition on which a worker ends by itself."""

    #: Never: when it is asked to stop.
    STOPPED = "stopped"
    #: Once it has run what was ready.
    ONCE = "once"
    #: Once nothing in its queues is due or running, here or elsewhere.
    DRAINED = "drained"


class WorkerProcess:
    """Runs tasks until it is asked to stop, or as long as ``until`` says.

    Args:
        queues: The queues to claim from; None: all.
        threads: The number of plain handlers that run at a time.
        coroutines: The number of coroutines that run at a time.
        processes: The number of child processes that run at a time.
        ttl: Seconds of the leases; the setting by default.
        stop_timeout: Seconds that running tasks have to end after a stop.
        until: The condition on which it ends by itself.
        max_tasks: The number of tasks after which it ends.
        max_memory: The MiB of memory (its resident set) above which it ends.
        chaos: Faults for demonstrations.
        name: The name of the worker; made of host and process by default.
        fleet: The name of its parent, its number among the children of that, and how many had the
            number before it; None: it has none.
        timing: How patient its parts are.
    """

    def __init__(
        self,
        *,
        queues: Sequence[str] | None = None,
        threads: int = 4,
        coroutines: int = 100,
        processes: int = 1,
        ttl: float | timedelta | None = None,
        stop_timeout: float | None = None,
        until: Until = Until.STOPPED,
        max_tasks: int | None = None,
        max_memory: int | None = None,
        chaos: Chaos | None = None,
        name: str | None = None,
        fleet: tuple[str, int, int] | None = None,
        timing: Timing = USUAL,
    ) -> None:
        self._timing = timing
        self.name = name or unique_name()
        self.fleet = fleet
        #: True once it serves.
        self.is_ready = False
        self.queues = list(queues or task_settings.QUEUES)
        self.ttl = ttl
        self.stop_timeout = task_settings.STOP_TIMEOUT if stop_timeout is None else stop_timeout
        self.until = until
        self.stopping = threading.Event()
        #: True if it ended because it could do no more, and should be started again.
        self.failed = False
        #: The moment at which its time to stop is over, once it stops.
        self.stops_by = float("-inf")
        self._tasks_left = max_tasks
        self._max_memory = max_memory
        #: True once it has more memory than that.
        self._is_too_large = False
        #: True if it has claimed all that it is to run.
        self._closing = False
        self._forced = False
        #: Set at its end.
        self.ended = threading.Event()
        #: True if the latest claim found something: then more is likely.
        self._busy = False
        #: True if there was room to claim for; and True if outcomes that could not be stored
        #: forbade it.
        self._looked = False
        self._is_blocked = False
        #: True if the latest claim found all it asked for: then more is ready.
        self._more = False
        #: True if the end is reached.
        self._is_finished = False
        self._timekeeper = Timekeeper(self._time_out)
        failed = partial(log.worker_claim_failed, worker=self.name)
        self._claiming = Service(self._look, failed, survives=(Error,))
        #: Further threads that the watcher looks after.
        self.watched: list[Watched] = []
        self._threads = ServiceThreads(self.ended, self._timekeeper, self, timing=timing)
        self.poller = Poller(self.queues, self.ended, self._renew_now)
        counts = {Kind.THREAD: threads, Kind.COROUTINE: coroutines, Kind.PROCESS: processes}
        self.executors = Executors(
            counts, self.poller.wake, self._stored, chaos, self._threads.callbacks, timing
        )
        self.health = WorkerHealth(
            self._claiming,
            self.executors.completer,
            self.stopping,
            lambda: self._claims_no_more,
        )
        self.health.is_observed = fleet is not None

    def run(self) -> None:
        """Work until ``stop`` is called, or the end is reached; then return when all is stored."""
        fleet, index, restarts = self.fleet or (None, None, None)
        registration = WorkerRegistration(
            self.name,
            lambda: {"blocked": self.executors.blocked},
            every=self._timing.seen_every,
            queues=self.queues,
            slots=self.executors.slots,
            fleet=fleet,
            fleet_index=index,
            fleet_restarts=restarts,
        )
        ours = lasting_connection(self.stopping)
        hearing = limiter.heard_by(self.poller.hear)
        with handlers_limited(), ours, apart(self._threads.callbacks), hearing:
            try:
                if not self.stopping.is_set():
                    registration.begin()
                    self._work(registration.service)
            finally:
                self.ended.set()

    def _work(self, heartbeats: Service) -> None:
        self.poller.listen(self._threads)
        self.health.lasting = {"heartbeats": heartbeats, "other threads": self._threads.watching}
        urgent = [heartbeats, *([self.health.migrations] if self.health.is_observed else ())]
        services.start(self._threads, *urgent, found=self.poller.wake, ttl=self.ttl)
        log.worker_started(
            worker=self.name, queues=", ".join(self.queues), handlers=len(own_handlers())
        )
        self.is_ready = True
        try:
            self._serve()
        finally:  # whatever ends it: what it has is not to be renewed for ever
            self._wind_up()

    def _serve(self) -> None:
        while not self.stopping.is_set():
            self.poller.begin_look()
            pause = self._claiming.step()
            if self._is_finished:
                break
            if pause:
                self._rest(pause)

    def _look(self) -> float:
        """Claim what there is room for. Returns the seconds until the next look."""
        if self._claim():
            return 0.0
        if not self._looked and self._claiming.is_failing:
            # Without a statement it would count as answered again, and the outage as ended.
            database_now(Task.objects.home().db)
        self._is_finished = self._reaches_end()
        if self._is_finished:
            return 0.0
        # Where more is ready, it is looked for as soon as there is room, and not at a time.
        pause: float = task_settings.POLL_EVERY
        if self._looked:
            pause = self.poller.pause(asks=not self._more)
        return max(0.001, pause)

    def stop(self) -> None:
        """Claim nothing more; a second call does not wait for running tasks either."""
        self._forced = self.stopping.is_set()
        self.stopping.set()
        for attempt in self.attempts:
            attempt.notify()
        self.poller.wake()

    def stop_now(self, patience: float = 5.0) -> None:
        """Give everything back, and wait up to ``patience`` seconds until that is done."""
        self.stop()
        self.stop()
        self.ended.wait(patience)

    def vitals(self) -> dict[str, Any]:
        """Return what a parent is to know of it once a second."""
        health = asdict(self.health.read())
        return {"ready": self.is_ready, "running": len(self.attempts), "health": health}

    @property
    def attempts(self) -> list[Attempt]:
        """Return the attempts that run now; after ``run``: those that could not be ended."""
        return self.executors.attempts

    # Claiming

    @property
    def _claims_no_more(self) -> bool:
        """Return True if it ends with the tasks that it runs."""
        return self._closing or self._is_too_large

    def _claim(self) -> bool:
        """Claim for the slots that are free, and ahead of them. Return True if there may be more to
        claim at once."""
        self._give_back_overdue()
        for queue, priority in self.poller.take_heard().items():
            # It may go before what was claimed.
            for executor in self.executors.values():
                executor.note_ready(queue, priority)
        self.executors.completer.replace_stuck_writer()
        self._looked = self._more = self.executors.saw_all = False
        self._is_blocked = (
            self.executors.completer.is_full
            or self._threads.callbacks.is_behind
            or (marks.current is not None and marks.current.are_full)
        )
        with suppress(RuntimeError):  # where nothing can be renewed it drains
            keeper.start()
        if keeper.draining or self._claims_no_more or self._is_blocked:
            self.executors.expect_no_more()
            return False
        found = self._take_all()
        return self.executors.wake_when(is_empty=found > 0 and not self.poller.listener.hears)

    def _take_all(self) -> int:
        """Claim for each executor that has room, up to the number of tasks after which it ends.
        Return the number of tasks that were claimed."""
        with_room = self.executors.find_room()
        if self._tasks_left is not None:
            # All that are ready may be of one kind. Of others some are next, or a supervisor that
            # starts it again and again would have it run one kind alone.
            random.shuffle(with_room)
        self._busy = False
        found = sum(self._take(executor, kinds) for executor, kinds in with_room)
        self._more = any(executor.has_more for executor in self.executors.values())
        if not self._more:
            self.executors.completer.look_again()
        return found

    def _take(self, executor: Executor, kinds: list[int]) -> int:
        room = executor.room
        if self._tasks_left is not None:
            room = min(room, self._tasks_left)
        if room <= 0 or self.stopping.is_set():
            return 0
        # Without a parent nobody knows what has not begun here, should this process die.
        claimed = Task.objects.take(
            self.name,
            queues=self.queues,
            kinds=kinds,
            limit=room,
            free=executor.vacant if marks.current is None else None,
            ttl=self.ttl,
            cursor=self.poller.cursor,
        )
        executor.has_more = claimed.has_more
        self._looked = True
        if claimed:
            self._busy = True
            self._begin(claimed, executor)
        return len(claimed)

    def _begin(self, claimed: list[ClaimedTask], executor: Executor) -> None:
        attempts = [Attempt(each, self.stopping, self._timekeeper.watch) for each in claimed]
        keep_all(attempts)
        if self.stopping.is_set():  # meanwhile: the claim was under way
            give_back(attempts, STOPPED)
            return
        try:
            left = self.executors.submit(attempts, executor)
        except BaseException:
            # Kept and not run they would be nobody's.
            submitted = {id(each) for each in self.attempts}
            left = [each for each in attempts if id(each) not in submitted]
            give_back(left, "its worker ended before it began")
            raise
        if left:
            give_back(left, MOVED)
        if self._tasks_left is not None:
            self._tasks_left -= len(claimed) - len(left)
            self._closing = self._closing or self._tasks_left <= 0

    def _give_back_overdue(self) -> bool:
        """Give back tasks that have waited here for too long, or wait behind long ones. Returns
        True if there were any."""
        overdue = [each for some in self.executors.values() for each in some.overdue()]
        for start in range(0, len(overdue), RETURNED_TOGETHER):
            give_back(overdue[start : start + RETURNED_TOGETHER], WAITED)
        if overdue:
            # They are to be claimed again, also by the last look of a worker that is to end.
            self._closing = False
            if self._tasks_left is not None:
                self._tasks_left += len(overdue)
        return bool(overdue)

    def _stored(self, outcomes: list[Outcome]) -> None:
        """Look again where what was just stored is a reason to: an end that somebody waits for,
        or a task that may be ready by it."""
        ends = self._claims_no_more or self.stopping.is_set() or self.until is not Until.STOPPED
        # The same task may be ready again, or another of its concurrency key.
        makes_ready = any(
            each.verb != COMPLETE or each.attempt.claimed.concurrency_key for each in outcomes
        )
        if ends or self._is_blocked or makes_ready:
            self.poller.wake()

    # Waiting

    def _rest(self, pause: float) -> None:
        """Wait until something wakes it, or ``pause`` is over. What would wait here for too long
        meanwhile is given back, and a reason to look."""
        until = clock() + pause
        while (ends_in := self.executors.wait_ends_in()) is not None:
            left = until - clock()
            if ends_in >= left:
                break
            if self.poller.wait(ends_in) or self._give_back_overdue():
                return
        left = max(0.001, until - clock())
        if self._more:
            self.poller.wait_busy(left, self.executors.idle_kinds)
        else:
            self.poller.rest(left, self._is_idle)

    def _is_idle(self) -> bool:
        """Return True if there is nothing to do but to wait for tasks. After a claim that failed
        there is: to find out if claims succeed again."""
        works = self.attempts or self._claims_no_more or self._claiming.is_failing
        return self.until is Until.STOPPED and not works

    def _renew_now(self, key: str) -> None:
        """The task with this ``key`` was asked to end."""
        for attempt in self.attempts:
            if str(attempt.claimed.id) == key:
                keeper.renew_now(attempt)

    def _reaches_end(self) -> bool:
        """Return True if the end is reached, after a look that found no more."""
        if self.until is Until.STOPPED and not self._claims_no_more:
            return False
        if self.executors.saw_all and not (self._claims_no_more or self._busy or self._more):
            if self.until is Until.ONCE:
                self._closing = True
            elif self.until is Until.DRAINED and all(each.is_over for each in self.attempts):
                self._closing = not self._is_anything_left()
        return self._claims_no_more and all(each.is_over for each in self.attempts)

    def _is_anything_left(self) -> bool:
        rows = Task.objects.home()
        paused = Queue.objects.using(rows.db).filter(paused_at__isnull=False).values("name")
        mine = rows.filter(queue__in=self.queues)
        return mine.running().exists() or mine.ready().exclude(queue__in=paused).exists()

    def _time_out(self, attempt: Attempt) -> None:
        with apart(self._threads.callbacks):
            time_out(attempt, self._timing)

    # Threads

    def ensure_running(self) -> None:
        """Start again what has ended of that which carries tasks, and give back what it carried:
        called by the watcher. Look at the memory too, and whether it is stuck."""
        for each in self.watched:
            each.ensure_running()
        self._look_at_memory()
        reason = self.executors.stuck_reason
        if reason and not self.stopping.is_set():
            log.worker_stuck(worker=self.name, reason=reason)
            self.failed = True
            self.stop()
        if given_up := self.executors.ensure_running():
            give_up(given_up)
            connections.close_all()
            self.poller.wake()

    def _look_at_memory(self) -> None:
        limit = self._max_memory
        if limit is None or self._is_too_large or (size := resident_mib()) <= limit:
            return
        log.worker_too_large(worker=self.name, mib=size, limit=limit)
        self._is_too_large = True
        self.poller.wake()

    # Stopping

    def _wind_up(self) -> None:
        self.stops_by = deadline = clock() + self.stop_timeout
        log.worker_stopping(worker=self.name, running=len(self.attempts))
        # What has not begun goes back at once.
        waiting = [each for some in self.executors.values() for each in some.withdraw()]
        if waiting:
            give_back(waiting, STOPPED)
        while self.attempts and not self._forced and clock() < deadline:
            self.poller.begin_look()
            self.executors.expect_no_more()
            if self.attempts:
                self.poller.wait(min(0.5, max(0.0, deadline - clock())))
        give_back_all(self.attempts, self._timing.end_patience)
        self._timekeeper.close()
        self.executors.close(PATIENCE)
        self.ended.set()
        self._threads.join()
        # What its tasks left goes on no longer; what others in this process hold does.
        keeper.discard(self.attempts)
        keeper.stop_if_idle()
        self._threads.callbacks.stop(PATIENCE)
        log.worker_stopped(worker=self.name)
