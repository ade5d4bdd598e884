"""Readings that polls of open pages share for a moment, in each web process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import TypeVar

from django.core.cache.backends.locmem import LocMemCache

from leasing.conf import leasing_settings

#: Seconds that a reading is shared. Longer than the two seconds between two polls: every second
#: poll of a single page costs next to nothing, and of many pages nearly all. News shows at the
#: second poll at the latest.
SHARED_FOR = 2.5

#: In memory, independent of CACHES: a cache in the database would cost more than it saves, and what
#: tasks carry does not leave the process. It holds few readings: a payload may be large.
_cache = LocMemCache("leasing.web", {"OPTIONS": {"MAX_ENTRIES": 200}})

Value = TypeVar("Value")


def shared(
    key: Hashable,
    read: Callable[[], Value],
    *,
    fresh: bool,
    seconds: float | Callable[[Value], float] | None = None,
) -> Value:
    """Return the reading under ``key``, or ``read()``, which is not None, where there is none.

    Args:
        key: Its ``repr`` tells the reading from all others of the same database.
        read: Called by several threads at a time where several find nothing.
        fresh: True to read it in any case, as for a user who opens a page.
        seconds: Seconds for which it is shared, or a function of the value; SHARED_FOR by default.
    """
    name = blake2b(repr((leasing_settings.DATABASE, key)).encode()).hexdigest()
    found: Value | None = None if fresh else _cache.get(name)
    if found is None:
        found = read()
        _cache.set(name, found, seconds(found) if callable(seconds) else seconds or SHARED_FOR)
    return found


def forget() -> None:
    """Drop all readings."""
    _cache.clear()
