"""Run plain functions on threads."""

from __future__ import annotations

import threading
import time
from typing import Any

from django.db import connections

from leasing.runtime.clock import clock
from leasing.runtime.threads import LastingThread
from tasks.execution import runner
from tasks.registry import Kind
from tasks.runtime import connection
from tasks.worker.executor import Executor


class Threads(Executor):
    """Runs each task on a thread, which cannot be ended from outside."""

    kind = Kind.THREAD

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._comes = threading.Condition()
        self._idle = 0
        self._threads: list[LastingThread] = []
        self._closed = False

    def _begin(self, count: int) -> None:
        if not self._threads:
            names = [f"task-{self.kind}-{number + 1}" for number in range(self.slots)]
            self._threads = [LastingThread(name, self._work) for name in names]
            self._restart()
        with self._comes:
            self._comes.notify(min(count, self._idle))
        # Let the thread that woke up go first: what the caller does next can wait for it.
        time.sleep(0)

    def _restart(self) -> None:
        for thread in self._threads:
            thread.ensure_running()

    def _work(self, call: runner.Call | None = None) -> None:
        """Run what comes, with handlers called by ``call``; None: on this thread."""
        connection.keep_connections()
        me = threading.current_thread()
        while True:
            try:
                attempt = self._waiting.popleft()
            except IndexError:
                if self._closed:
                    connections.close_all()
                    return
                self._wait()
                continue
            attempt.carrier = me
            self._begun[id(attempt)] = began_at = clock()
            self._end(runner.work(attempt, call, self.chaos), began_at)

    def _wait(self) -> None:
        """Wait until something comes. The connections are closed if that takes a while."""
        runner.tidy()
        for seconds in (self.timing.slot_idle, None):
            with self._comes:
                if self._waiting or self._closed:
                    return
                self._idle += 1
                try:
                    if self._comes.wait(seconds):
                        return
                finally:
                    self._idle -= 1
            connection.close_kept()

    def close(self) -> None:
        with self._comes:
            self._closed = True
            self._comes.notify_all()
