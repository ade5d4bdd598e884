"""SIGTERM and SIGINT, for processes that end in good order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Seconds that the end of the block waits for a ``stop`` under way.
PATIENCE = 1.0


@contextmanager
def on_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at each SIGTERM and SIGINT while the block runs, on a thread of its own;
    afterwards they do what they did before.

    A handler that set an Event itself could stop for ever on a lock that the interrupted main
    thread holds, so it only writes a byte that the thread waits for. Other threads than the main
    one get no signals, and none is handled there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()

    def notice(number: int, frame: FrameType | None) -> None:
        os.write(writing, b"s")

    def listen() -> None:
        with open(reading, "rb", buffering=0) as asked:
            while asked.read(1):
                stop()

    listener = threading.Thread(target=listen, name="stop-signals", daemon=True)
    listener.start()
    before = {number: signal.signal(number, notice) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # What was not set from Python cannot be set back, but to the default.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(writing)
        listener.join(PATIENCE)
