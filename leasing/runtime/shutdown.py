"""SIGTERM and SIGINT, for processes that end in good order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


def on_stop_signal(stop: Callable[[], object]) -> None:
    """Call ``stop`` at each SIGTERM and SIGINT, on a thread of its own.

    A handler that set an Event itself could stop for ever on a lock that the interrupted main
    thread holds, so it only writes a byte that the thread waits for. For the main thread only.
    """
    reading, writing = os.pipe()

    def notice(number: int, frame: FrameType | None) -> None:
        os.write(writing, b"s")

    def listen() -> None:
        while os.read(reading, 1):
            stop()

    threading.Thread(target=listen, name="stop-signals", daemon=True).start()
    signal.signal(signal.SIGTERM, notice)
    signal.signal(signal.SIGINT, notice)
