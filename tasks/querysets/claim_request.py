"""The number of tasks that a worker claims for the slots of one kind, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.registry import KINDS


@dataclass(slots=True)
class ClaimRequest:
    """Up to ``room`` tasks of these ``kinds``, which are numbers of ``tasks.registry.Kind``.

    The first ``free`` of them begin at once, and the first ``soon`` so soon that it makes no
    difference, unless one of them has run before: it may have killed its worker. None: all of them
    do. The others wait for a slot.
    """

    room: int
    kinds: Sequence[int] = KINDS
    free: int | None = None
    soon: int | None = None
    #: The number of tasks that were claimed.
    found: int = 0
    #: True if it came past tasks that are claimed for a free slot alone.
    passed_over: bool = False

    @property
    def left(self) -> int:
        """Return the number of tasks that are still to be claimed."""
        return self.room - self.found

    @property
    def free_left(self) -> int:
        """Return the number of them that begin at once."""
        return self.left if self.free is None else max(0, self.free - self.found)

    @property
    def soon_left(self) -> int:
        """Return the number of them that begin soon."""
        return self.free_left if self.soon is None else max(0, self.soon - self.found)

    @property
    def has_more(self) -> bool:
        """Return True if there is probably more to claim."""
        return self.passed_over or 0 < self.room <= self.found


def may_wait(attempts: int, max_attempts: int) -> bool:
    """Return True if a ready task may be claimed before there is a slot for it: if its worker dies
    meanwhile, that costs an attempt, and this one has others."""
    return attempts == 0 and max_attempts > 1
