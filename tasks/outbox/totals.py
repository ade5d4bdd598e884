"""Count the work of this process's relay since it started: for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Totals:
    """Counted by the thread that publishes, and read by others."""

    #: Keys of tasks that the broker took, by queue.
    published: Counter[str] = field(default_factory=Counter)
    #: Of these, such as it had been given before, and seemed to have lost.
    again: Counter[str] = field(default_factory=Counter)
    #: Messages of the outbox that it took, and such as it refused.
    sent: int = 0
    refused: int = 0
    #: Looks that failed, for the broker or the database was away.
    failures: int = 0
    #: The moment of the last look that did not: seconds since 1970, by this host.
    succeeded_at: float | None = None


totals = Totals()
