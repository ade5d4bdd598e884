"""The patience of a worker's parts, in one object that a worker can be given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds, unless something else is stated. The defaults are those of production; a test gives
    its worker others."""

    #: Work that waits in an executor.
    prefetch: float = 0.03
    #: The time after which a task is long.
    long_after: float = 0.005
    #: The time after its claim until a task that has not begun is given back.
    slot_wait: float = 1.0
    #: The time without an answer after which an event loop counts as blocked, and gets no task.
    blocked_after: float = 1.0
    #: The time for which a handler in a child process may go on after a cancellation.
    cancel_grace: float = 10.0
    #: The time that an interrupted handler has to return before its task is ended without it.
    end_patience: float = 1.0
    #: The time for which a slot, and the completer, keep a connection that nothing uses.
    slot_idle: float = 1.0
    completer_idle: float = 5.0
    #: The time that an outcome waits for others while more tasks run.
    batch_delay: float = 0.005
    #: The time after which another thread stores what comes after a slow statement: it may wait for
    #: a lock on one of its rows.
    stuck_writer_after: float = 1.0
    #: After this many times the ttl of its task an outcome that is not stored ends the worker, but
    #: not before this many times ANSWER_TIMEOUT: a lost answer takes two of them to be noticed if
    #: the question about it gets no answer either, and the next statement may lose its own.
    stuck_after: float = 3
    stuck_after_answers: int = 4
    #: The pauses between the tries to store an outcome.
    store_pauses: tuple[float, ...] = (0.1, 0.3, 1, 2, 4, 8, 15)
    #: The time between two looks of the watcher.
    tend_every: float = 1.0
    #: The time between two heartbeats of a worker's row.
    seen_every: float = 6.0


#: The timing of production.
USUAL = Timing()
