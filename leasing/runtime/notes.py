"""Entries for the audit ledger that wait until a thread with other work writes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from leasing.runtime.event_lines import log
from leasing.runtime.framework import close_connections
from leasing.runtime.threads import Streak

#: Notes that wait while the database does not answer; beyond this the oldest are dropped.
MAX_NOTES = 1000
#: Seconds until notes that could not be written are tried again.
NOTE_PAUSE = 1.0
#: Seconds that one note may take, its wait for locks included.
NOTE_LIMIT = 1.0
#: A write to the ledger, and what aborts it when it hangs.
Note = tuple[Callable[[], object], Callable[[], object]]


class Notes:
    """Waiting notes, in their order; beyond MAX_NOTES the oldest are dropped. ``due_at`` is the
    moment of the next try, on the ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.due_at = 0.0
        self._clock = clock
        self._notes: deque[Note] = deque(maxlen=MAX_NOTES)
        self._failures = Streak(NOTE_PAUSE, NOTE_PAUSE)

    def __len__(self) -> int:
        return len(self._notes)

    def put(self, note: Callable[[], object], abort: Callable[[], object]) -> None:
        """Queue ``note``. ``abort`` makes it fail if it hangs; another thread calls it."""
        self._notes.append((note, abort))

    def take(self) -> list[Callable[[], object]]:
        """Remove and return all that wait."""
        notes = [note for note, _ in self._notes]
        self._notes.clear()
        return notes

    def write(
        self,
        has_time: Callable[[], bool],
        requesting: Callable[[Callable[[], object], float], AbstractContextManager[None]],
    ) -> bool:
        """Write waiting notes while ``has_time``, each inside ``requesting`` with its ``abort`` and
        its limit. Return False if one could not be written."""
        while self._notes and has_time():
            note, abort = self._notes[0]
            try:
                with requesting(abort, NOTE_LIMIT):
                    note()
            except Exception as error:
                self._failures.failed(error)
                log.keeper_note_waits(level=self._failures.level, error=error)
                self.due_at = self._clock() + NOTE_PAUSE
                close_connections()
                return False
            self._failures.succeeded()
            if self._notes and self._notes[0][0] is note:
                self._notes.popleft()
        return True
