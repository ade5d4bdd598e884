"""The parent's knowledge of its children: what pages, probes and metrics of the parent may show."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasing.runtime.clock import clock

#: Seconds until a child is replaced that did not end well: the first, and where it ended soon after
#: its start doubling up to the longest. The process that hands its tasks back goes first.
FIRST_PAUSE, LONGEST_PAUSE, LIVED_LONG = 0.1, 5.0, 2.0


@dataclass
class ChildStatus:
    """One child, from its start until it was reaped."""

    #: Its number in the fleet, from 1 on: its successors have the same.
    index: int
    #: The holder of its tasks and the name of its row. No two children ever have the same.
    name: str
    pid: int = 0
    #: Moments on the clock of ``leasing.runtime.clock``.
    started_at: float = field(default_factory=clock)
    #: The moment of its last report; None: there was none yet.
    beat_at: float | None = None
    #: True once it serves: it has registered, and looks for tasks.
    is_ready: bool = False
    #: True if it was asked to stop.
    is_stopping: bool = False
    #: Its last report: ``WorkerProcess.vitals``.
    vitals: Mapping[str, Any] = field(default_factory=dict)

    def hear(self, report: Mapping[str, Any]) -> None:
        """Take a report of the child in."""
        self.beat_at = clock()
        self.vitals = report
        self.is_ready = self.is_ready or bool(report.get("ready"))


@dataclass
class Member:
    """The place of one index in the fleet, over all children that had it."""

    index: int
    #: The present child; None between two.
    child: ChildStatus | None = None
    #: The number of children that had it after the first.
    restarts: int = 0
    #: True if a child is to be started for it.
    is_awaited: bool = True
    #: The numbers of children in a row that ended before they were ready, and soon after their
    #: start.
    failed_starts: int = 0
    quick_ends: int = 0
    #: True if the last child ended well.
    ended_well: bool = True
    #: The end of the last child in words, for people; empty if there was none.
    last_end: str = ""

    def note_end(self, child: ChildStatus, code: int, how: str) -> None:
        """Note that ``child`` has ended.

        Args:
            child: The child.
            code: Its exit code; below 0 that of a signal.
            how: The same in words.
        """
        self.child, self.last_end = None, how
        self.failed_starts = 0 if child.is_ready else self.failed_starts + 1
        self.ended_well = child.is_ready and not code
        lived_long = clock() - child.started_at > LIVED_LONG
        self.quick_ends = 0 if self.ended_well or lived_long else self.quick_ends + 1

    @property
    def pause(self) -> float:
        """Return the seconds until a child that has ended is replaced: at random, so that children
        that ended together do not start together."""
        if self.ended_well:
            return 0.0
        bound = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.quick_ends, 16))
        return random.uniform(bound / 2, bound)
