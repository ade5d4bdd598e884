"""A worker process: claims tasks, runs them on threads, and recovers those of others.

    main thread    claims as many tasks as threads are free, as long as renewals succeed
    threads        run one task each at a time (``runner``)
    keeper         renews all of them in one statement (``leasing.keeper``)
    controller     recovers tasks whose holder is gone (``recovery``)
    scheduler      enqueues what schedules say (``schedules``)
    presence       keeps this worker's row up to date

Asked to stop (SIGTERM, SIGINT) it claims nothing more and lets its tasks run on until a
deadline; what is still running then is given back at once, with no attempt spent. Asked again
it gives back at once. Threads cannot be killed: what runs on in one ends with the process, and
its result is refused. A worker whose threads are all at tasks that were lost long ago ends, to be
started again by whoever supervises it.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import Error, close_old_connections, connections

from leasing.clock import clock
from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.keeper import keeper
from leasing.names import default_holder
from tasks import recovery, runner, schedules
from tasks.chaos import Chaos
from tasks.conf import task_settings
from tasks.models import Task
from tasks.presence import PRESENCE_PATIENCE, keep_present, sign_off

logger = logging.getLogger("tasks.worker")

#: Seconds between claims while the database is away.
LONGEST_PAUSE = 15.0


class WorkerProcess:
    """Runs tasks of ``queues`` (None: all) on ``concurrency`` threads until asked to stop."""

    def __init__(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 4,
        ttl: float | timedelta | None = None,
        stop_timeout: float | None = None,
        chaos: Chaos | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or default_holder()
        self.queues = list(queues or task_settings.QUEUES)
        self.concurrency = concurrency
        self.ttl = ttl
        self.stop_timeout = task_settings.STOP_TIMEOUT if stop_timeout is None else stop_timeout
        self.chaos = chaos
        self.stopping = threading.Event()
        #: Whether it ended because it could do no more, and should be started again.
        self.failed = False
        self._stuck_since: float | None = None
        self._forced = False
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        # By grant: a task that was lost and claimed again is here twice, on two threads.
        self._running: dict[uuid.UUID, tuple[Task, Hold]] = {}
        self._inbox: queue.SimpleQueue[tuple[Task, Hold]] = queue.SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}

    def run(self) -> None:
        """Work until ``stop`` is called; then return when all is settled."""
        self._start_threads()
        logger.info(
            "%s serves %s with %s threads", self.name, ", ".join(self.queues), self.concurrency
        )
        failures = 0
        while not self.stopping.is_set():
            self._wake.clear()
            try:
                full = self._claim()
                failures = 0
            except Error as error:
                failures += 1
                full = False
                connections.close_all()
                logger.warning("claiming failed, and is tried again: %s", error)
            if self._is_stuck():
                logger.error("every thread runs a task that was lost: %s ends", self.name)
                self.failed = True
                self.stop()
            elif not full:
                pause = min(LONGEST_PAUSE, task_settings.POLL_EVERY * 2.0 ** min(failures, 10))
                self._wake.wait(pause * random.uniform(0.8, 1.0))
        self._wind_up()

    def stop(self) -> None:
        """Claim nothing more; a second call does not wait for running tasks either."""
        self._forced = self.stopping.is_set()
        self.stopping.set()
        self._wake.set()

    def _is_stuck(self) -> bool:
        """Whether every thread has been at a task that was lost for longer than its lease was:
        they cannot be stopped, and nothing else is left to do but to be started again."""
        with self._lock:
            held = [hold for _, hold in self._running.values()]
        if len(held) < self.concurrency or not all(hold.lost.is_set() for hold in held):
            self._stuck_since = None
            return False
        if self._stuck_since is None:
            self._stuck_since = clock()
        return clock() - self._stuck_since > max(3 * hold.interval for hold in held)

    # Claiming

    def _claim(self) -> bool:
        """Claim for the threads that are free. Whether there may be more to claim at once."""
        close_old_connections()
        free = self.concurrency - len(self._running)
        if free <= 0 or keeper.draining:
            return False
        tasks = Task.objects.claim(self.name, queues=self.queues, limit=free, ttl=self.ttl)
        for task in tasks:
            hold = runner.hold_of(task)
            with self._lock:
                self._running[hold.grant_id] = task, hold
            self._inbox.put((task, hold))
        return len(tasks) == free and len(self._running) < self.concurrency

    # Threads

    def _start_threads(self) -> None:
        works: list[tuple[str, Any]] = [("presence", self._keep_present)]
        works.append(("controller", lambda: recovery.run_until(self._ended, self._wake.set)))
        works.append(("scheduler", lambda: schedules.run_until(self._ended, self._wake.set)))
        works += [(f"task-{number + 1}", self._run_tasks) for number in range(self.concurrency)]
        for name, work in works:
            self._threads[name] = threading.Thread(target=work, name=name, daemon=True)
            self._threads[name].start()

    def _run_tasks(self) -> None:
        while True:
            task, hold = self._inbox.get()
            try:
                runner.run(task, hold, self.stopping, self.chaos)
            finally:
                with self._lock:
                    self._running.pop(hold.grant_id, None)
                self._wake.set()

    def _keep_present(self) -> None:
        keep_present(self.name, self._ended, queues=self.queues, concurrency=self.concurrency)

    # Stopping

    def _wind_up(self) -> None:
        deadline = clock() + self.stop_timeout
        logger.info("%s stops; %s tasks run on", self.name, len(self._running))
        while self._running and not self._forced and clock() < deadline:
            self._wake.clear()
            if self._running:
                self._wake.wait(min(0.5, max(0.0, deadline - clock())))
        with self._lock:
            left = list(self._running.values())
        for task, hold in left:
            self._give_back(task, hold)
        self._ended.set()
        # A sign of life that is under way would undo the signing off.
        self._threads["presence"].join(PRESENCE_PATIENCE)
        sign_off(self.name)
        keeper.stop()
        logger.info("%s has stopped", self.name)

    def _give_back(self, task: Task, hold: Hold) -> None:
        hold.leave()
        try:
            Task.objects.give_back(task, "its worker was stopped")
        except LeaseLost as loss:
            logger.info("task %s needed no giving back: %s", task.pk, loss)
        except Error as error:
            logger.warning("task %s could not be given back: %s", task.pk, error)
