"""Calls back: what users hear of their holds, apart from the threads that renew and watch."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from django.db import connections

from leasing.runtime.event_logger import get_logger

logger = get_logger("leasing.keeper")

#: How many callbacks may run at a time: a slow one delays no other until so many are slow.
MOST = 16


class Teller:
    """Runs what it is told on daemon threads: one, and more while those before are busy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tales: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._pending = 0
        self._threads: list[threading.Thread] = []

    def tell(self, tale: Callable[[], object]) -> None:
        """Run ``tale`` soon. Whatever it raises is logged."""
        with self._lock:
            self._tales.put(tale)
            self._pending += 1
            if len(self._threads) < min(self._pending, MOST):
                # At interpreter exit no thread can be started; nobody is left to be told either.
                with contextlib.suppress(RuntimeError):
                    self._start_thread()

    def stop(self, patience: float) -> None:
        """Run what was told before, and end; wait for ``patience`` seconds at most."""
        for _ in self._threads:
            self._tales.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(patience)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="leasing-teller", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self) -> None:
        while (tale := self._tales.get()) is not None:
            try:
                tale()
            except BaseException:  # sys.exit() too: it would end this thread, and no more
                logger.exception("a callback on a hold failed", event="hold.callback_failed")
            finally:
                connections.close_all()
            with self._lock:
                self._pending -= 1
