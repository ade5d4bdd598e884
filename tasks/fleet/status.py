"""State of the children of a parent, for its probes, and the back-off of their restarts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasing.runtime.clock import clock

#: Seconds until a child that died is restarted: at first, and at most, after doubling while
#: children exit within LIVED_LONG of their start. The writer starts first.
FIRST_PAUSE, LONGEST_PAUSE, LIVED_LONG = 0.1, 5.0, 2.0


@dataclass
class ChildStatus:
    """One child, from its start until it is reaped."""

    #: Its number in the fleet, from 1; its successors have the same number.
    index: int
    #: The holder of its tasks and the name of its row, unique to this child.
    name: str
    pid: int = 0
    #: Moments on the clock of ``leasing.runtime.clock``.
    started_at: float = field(default_factory=clock)
    #: The moment of its last report; None before the first.
    beat_at: float | None = None
    #: True once it has registered and claims tasks.
    is_ready: bool = False
    #: Number of looks of the parent since its last report.
    unheard: int = 0
    #: True if it was asked to stop.
    is_stopping: bool = False
    #: Its last report: ``WorkerProcess.vitals``.
    vitals: Mapping[str, Any] = field(default_factory=dict)

    def receive(self, report: Mapping[str, Any]) -> None:
        """Store a report of the child."""
        self.beat_at, self.unheard = clock(), 0
        self.vitals = report
        self.is_ready = self.is_ready or bool(report.get("ready"))


@dataclass
class Member:
    """One index of the fleet, with the history of all its children."""

    index: int
    #: The current child; None between two children.
    child: ChildStatus | None = None
    #: Number of children after the first.
    restarts: int = 0
    #: True if a child is to be started.
    is_awaited: bool = True
    #: Numbers of children in a row that exited before they were ready, and soon after their start.
    failed_starts: int = 0
    quick_ends: int = 0
    #: True if the last child exited cleanly.
    ended_well: bool = True
    #: The reason of the last exit, as text; empty if there was none.
    last_end: str = ""

    def note_end(self, child: ChildStatus, code: int, how: str) -> None:
        """Record the exit of ``child``.

        Args:
            child: The child.
            code: Its exit code; negative for a signal.
            how: The same as text.
        """
        self.child, self.last_end = None, how
        self.failed_starts = 0 if child.is_ready else self.failed_starts + 1
        self.ended_well = child.is_ready and not code
        lived_long = clock() - child.started_at > LIVED_LONG
        self.quick_ends = 0 if self.ended_well or lived_long else self.quick_ends + 1

    @property
    def pause(self) -> float:
        """Return the seconds until a child that exited is restarted, with jitter, so that children
        that died together do not start together."""
        if self.ended_well:
            return 0.0
        bound = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.quick_ends, 16))
        return random.uniform(bound / 2, bound)
