"""Clean shutdown on SIGTERM and SIGINT, and the exit codes of the commands that run something."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Final

from leasing.runtime.clock import clock

#: The exit code of a process that ends by a signal, less the number of the signal.
KILLED_BY: Final = 128
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Seconds that the end of the block waits for a ``stop`` under way.
PATIENCE = 1.0
#: Seconds that a block which was interrupted has to release what it holds. Signals in this time
#: change nothing: an operator who presses Ctrl-C many times would interrupt the release.
RELEASE_PATIENCE = 5.0


class ExitCode(IntEnum):
    """The exit code of a process, for its supervisor. docs/commands.md has them as a table."""

    #: It was asked to stop, or has done what it was to do.
    DONE = 0
    #: It cannot begin as things are (a value is not valid, a migration is missing, a port is in
    #: use), or it could do no more. It may be started again.
    FAILED = 1
    #: The command line is wrong: restarting does not help.
    REFUSED = 2
    #: Its term as the leader has ended, and it was to lead no more than one (EX_TEMPFAIL).
    TERM_ENDED = 75


@contextmanager
def shutdown(grace: float | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets while the block runs; afterwards they
    do what they did before.

    The second signal raises SystemExit in the block, so that its ``with`` blocks end and release
    what they hold. So does the first one after ``grace`` seconds, unless that is None or the block
    has ended. Further signals are ignored for RELEASE_PATIENCE seconds, so that they interrupt no
    release; the next one raises SystemExit again, and leaves to its ttl what is not released by
    then. Other threads than the main one get no signals: there the event is never set.
    """
    stopping = threading.Event()
    lock, has_ended = threading.Lock(), threading.Event()
    main = threading.get_ident()

    def stop() -> None:
        stopping.set()
        if grace is None or has_ended.wait(grace):
            return
        with lock:  # or the signal could come when nothing handles it any more
            if not has_ended.is_set():
                signal.pthread_kill(main, signal.SIGTERM)

    with on_stop_signal(stop, insisted_upon=True):
        try:
            yield stopping
        finally:
            has_ended.set()
            with lock:
                pass  # a signal under way comes while it is handled


@contextmanager
def on_stop_signal(
    stop: Callable[[], object],
    *,
    insisted_upon: bool = False,
    numbers: Collection[signal.Signals] = SIGNALS,
) -> Iterator[None]:
    """Call ``stop`` at each SIGTERM and SIGINT while the block runs, on a thread of its own;
    afterwards they do what they did before. With ``insisted_upon``, only at the first: the next
    raises SystemExit in the block, and so do later ones, but not within RELEASE_PATIENCE seconds.
    With ``numbers`` it minds these signals alone.

    A handler that set an Event itself could stop for ever on a lock that the interrupted main
    thread holds, so it only writes a byte that the thread waits for. Other threads than the main
    one get no signals, and none is handled there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()

    is_asked = False
    interrupted_at = -math.inf

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked, interrupted_at
        if is_asked and insisted_upon:
            if clock() - interrupted_at < RELEASE_PATIENCE:
                return
            interrupted_at = clock()
            raise SystemExit(KILLED_BY + number)
        is_asked = True
        os.write(writing, b"s")

    def listen() -> None:
        with open(reading, "rb", buffering=0) as asked:
            while asked.read(1):
                stop()

    listener = threading.Thread(target=listen, name="stop-signals", daemon=True)
    listener.start()
    before = {number: signal.signal(number, notice) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # What was not set from Python cannot be set back, but to the default.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(writing)
        listener.join(PATIENCE)
