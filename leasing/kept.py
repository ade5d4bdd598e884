"""What was read a moment ago, for all who ask for the same again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from leasing.conf import leasing_settings

Value = TypeVar("Value")


@dataclass(frozen=True)
class Reading(Generic[Value]):
    """A value, and how old it is."""

    value: Value
    age: timedelta


class Kept(Generic[Value]):
    """Keeps in this process, for ``fresh_for`` seconds, what ``read`` returned.

    It must not depend on who asks. Whoever finds it stale reads it anew; of several at a time
    each does, and nobody waits for another.
    """

    def __init__(self, read: Callable[[], Value], fresh_for: float) -> None:
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
        value = self._read()
        self._latest = value, began, using
        return Reading(value, timedelta(seconds=time.monotonic() - began))
