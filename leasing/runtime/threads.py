"""Threads that are to last: started, watched by others, and started again when they have ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from leasing.runtime.event_lines import log

#: The number of times that a thread of this process ended before its work did, by its name.
replaced: Counter[str] = Counter()


def start_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """A daemon thread that has begun to ``work``. Raises RuntimeError where there can be none."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def note_replaced(name: str) -> None:
    """Log and count that the thread called ``name`` had ended, and was started again."""
    replaced[name] += 1
    log.thread_replaced(thread_name=name)


class LastingThread:
    """A daemon thread that does ``work``, until that returns: its watcher calls ``tend``
    now and then."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self._work = work
        self._thread: threading.Thread | None = None
        self._starts = threading.Lock()
        self._is_done = self._is_short = False

    def tend(self) -> None:
        """Start it if it does not run, unless its work is done. Where there can be no thread more
        the next call tries again. Any thread may call this."""
        if self._is_wanting():
            with self._starts:
                if self._is_wanting():  # still: another may have started it meanwhile
                    self._start()

    def _is_wanting(self) -> bool:
        return not (self._is_done or self.is_alive())

    def _start(self) -> None:
        thread = self._thread
        try:
            self._thread = start_thread(self.name, self._run)
        except RuntimeError as error:
            if not self._is_short:
                log.thread_not_started(thread_name=self.name, error=error)
            self._is_short = True
        else:
            self._is_short = False
            if thread is not None:
                note_replaced(self.name)

    def is_alive(self) -> bool:
        """Return True while it runs."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def join(self, patience: float) -> None:
        """Wait for its end, for ``patience`` seconds at most."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)

    def _run(self) -> None:
        self._work()
        self._is_done = True
