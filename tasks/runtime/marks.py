"""Marks of the tasks whose handler a worker has called, in memory that outlives the worker.

A parent shares a map with each of its workers (``tasks.fleet``). A worker writes the grant of a
task there before it calls the handler, and clears it when the outcome is stored. So when a worker
was killed, what runs under its name in the database and is not marked had not begun.

A mark that was being written when the worker was killed matches no grant: the handler had not been
called.

A worker without a parent has no marks: ``current`` is None, and nobody writes.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from leasing.runtime.clock import clock

#: Bytes of a grant as the text that came with its claim, for converting it would take longer than
#: all the rest; and of a process group's number.
GRANT, GROUP = 36, 8
_NUMBER = struct.Struct("q")
#: The number of results that may wait to be stored, and those that are being stored: tasks that
#: have begun, beyond those that are in an executor.
UNSTORED = 8000


class Marks:
    """The map of one worker.

    Args:
        inside: The greatest number of tasks that can be in the executors of the worker at a time.
        groups: The number of processes that the worker runs handlers in.
        descriptor: An open file to map; -1: memory that processes share by a fork alone.
    """

    def __init__(self, inside: int, groups: int, descriptor: int = -1) -> None:
        self.inside, self.groups = inside, groups
        self._groups_end = GROUP * groups
        size = size_of(inside, groups)
        self._map = mmap.mmap(descriptor, size)
        places = range(self._groups_end, size, GRANT)
        #: Offsets of what is free: the latest first, so that few pages are ever touched.
        self._free = [*reversed(places)]
        #: Offsets of the marks, by their grants.
        self._places: dict[str, int] = {}
        self._kept: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    # The worker's side

    @property
    def are_full(self) -> bool:
        """Return True if what may come to be in the executors has no place: claim nothing then."""
        if self._kept:
            self._forget_kept()
        return len(self._free) < self.inside

    def begin(self, grant: str) -> None:
        """Mark that the handler of the task under ``grant`` is about to be called. Raises
        IndexError if there is no place."""
        place = self._free.pop()
        self._map[place : place + GRANT] = grant.encode()
        # Last: a timeout may clear it from here on, and the place is somebody else's then.
        self._places[grant] = place

    def clear(self, grants: Iterable[str]) -> None:
        """Clear the marks, where there are any: the outcomes are stored."""
        for grant in grants:
            place = self._places.pop(grant, None)  # two threads may come at the same time
            if place is not None:
                self._map[place] = 0
                self._free.append(place)

    def keep(self, grant: str, seconds: float) -> None:
        """Clear the mark in so many seconds: the outcome could not be stored, and the task may run
        until then."""
        place = self._places.pop(grant, None)
        if place is not None:
            self._kept.append((clock() + seconds, place))

    def _forget_kept(self) -> None:
        with self._lock:
            while self._kept and self._kept[0][0] <= clock():
                _, place = self._kept.popleft()
                self._map[place] = 0
                self._free.append(place)

    def add_group(self, number: int) -> None:
        """Note that handlers run in the process group ``number``."""
        with self._lock:
            self._replace_group(0, number)

    def remove_group(self, number: int) -> None:
        """Note that the process group ``number`` has ended."""
        with self._lock:
            self._replace_group(number, 0)

    def _replace_group(self, before: int, after: int) -> None:
        for place in range(0, self._groups_end, GROUP):
            if _NUMBER.unpack_from(self._map, place)[0] == before:
                _NUMBER.pack_into(self._map, place, after)
                return

    # The parent's side

    def begun(self) -> set[uuid.UUID]:
        """Return the grants that are marked."""
        found: set[uuid.UUID] = set()
        for place in range(self._groups_end, len(self._map), GRANT):
            if self._map[place]:
                with suppress(ValueError):  # it was being written
                    found.add(uuid.UUID(self._map[place : place + GRANT].decode()))
        return found

    def noted_groups(self) -> list[int]:
        """Return the process groups that are noted."""
        numbers = _NUMBER.iter_unpack(self._map[: self._groups_end])
        return [number for (number,) in numbers if number > 0]

    def close(self) -> None:
        """Unmap it here."""
        self._map.close()


def size_of(inside: int, groups: int) -> int:
    """Return the bytes of a map."""
    return GROUP * groups + GRANT * (inside + UNSTORED)


#: The marks of this process; None: it has no parent that would read them.
current: Marks | None = None


def _forget() -> None:
    """Have no marks, in a forked child: they are those of the process that was forked."""
    global current
    current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
