"""What was read a moment ago, for all who ask for the same again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from leasing.conf import leasing_settings

#: For how many seconds polls of open pages share what one of them read. It is longer than the two
#: seconds between two polls: every second one of a single page costs next to nothing, and of many
#: pages nearly all. What is new shows at the second poll at the latest.
SHARED_FOR = 2.5

Value = TypeVar("Value")
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Reading(Generic[Value]):
    """A value, and how old it is."""

    value: Value
    age: timedelta


class Kept(Generic[Value]):
    """Keeps in this process, for ``fresh_for`` seconds, what ``read`` returned, which is told
    whether all of it is to be as it is now.

    It must not depend on who asks. Whoever finds it stale reads it anew; of several at a time
    each does, and nobody waits for another.
    """

    def __init__(self, read: Callable[[bool], Value], fresh_for: float) -> None:
        self.fresh_for = fresh_for
        self._read = read
        #: The value, when it began to be read, and from which database.
        self._latest: tuple[Value, float, str] | None = None

    def get(self, *, anew: bool = False) -> Reading[Value]:
        """The value; ``anew``: as it is now."""
        using, began = leasing_settings.DATABASE, time.monotonic()
        if self._latest is not None and not anew:
            value, read_at, source = self._latest
            if source == using and began - read_at < self.fresh_for:
                return Reading(value, timedelta(seconds=began - read_at))
        value = self._read(anew)
        self._latest = value, began, using
        return Reading(value, timedelta(seconds=time.monotonic() - began))


class Shelf(Generic[Value]):
    """Keeps many values in this process, each under a key, for all who ask for the same again.

    A value is fresh for as many seconds as ``fresh_for`` says of it. Who asks for some gets what
    there is, and reads only ``at_once`` of the stale ones anew, the oldest first: what takes long
    to read together is read in turns. At most ``room`` values are kept, those last read.
    """

    def __init__(
        self, fresh_for: Callable[[Value], float], at_once: int, room: int = 1_000
    ) -> None:
        self.fresh_for = fresh_for
        self.at_once = at_once
        self.room = room
        #: Each value, and when it began to be read; the last read at the end.
        self._kept: dict[Hashable, tuple[Value, float]] = {}
        self._lock = threading.Lock()

    def get(
        self, wanted: Mapping[Name, tuple[Hashable, Callable[[], Value]]], *, anew: bool = False
    ) -> dict[Name, Value]:
        """The values of ``wanted``, which tells the key of each and how to read it, by their
        names in it; ``anew``: all as they are now."""
        using, now = leasing_settings.DATABASE, time.monotonic()
        keys = {name: (using, key) for name, (key, _) in wanted.items()}
        found = {name: self._kept.get(key) for name, key in keys.items()}
        stale = sorted(
            (read_at, place)
            for place, each in enumerate(found.values())
            if each is not None
            for value, read_at in [each]
            if now - read_at >= self.fresh_for(value)
        )
        names = list(wanted)
        read_now = {names[place] for _, place in stale[: self.at_once]}
        values = {}
        for name, (_, read) in wanted.items():
            each = found[name]
            if each is None or anew or name in read_now:
                values[name] = self._put(keys[name], read)
            else:
                values[name] = each[0]
        return values

    def _put(self, key: Hashable, read: Callable[[], Value]) -> Value:
        began = time.monotonic()
        value = read()
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = value, began
            while len(self._kept) > self.room:
                del self._kept[next(iter(self._kept))]
        return value
