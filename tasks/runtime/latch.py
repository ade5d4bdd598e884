"""An event that costs next to nothing until somebody waits for it."""

from __future__ import annotations

import threading

_lock = threading.Lock()


class Latch:
    """Is set once. ``set``, ``is_set`` and ``wait`` are those of ``threading.Event``."""

    # The class's until they are set: there is one for each task.
    _is_set: bool = False
    _event: threading.Event | None = None

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        with _lock:
            event = self._event = self._event or threading.Event()
        # A thread that set it before this line may not have seen the event; a later one will.
        return self._is_set or event.wait(timeout)
