"""Faults on purpose, for demonstrations: ``run_worker --chaos``.

As in the public sample, some tasks crash their worker and some meet a latency spike. A spike
stalls the renewals too, not only the work: otherwise no heartbeat would ever be missed. Its
result is then handed in late, to be refused.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass, field

from leasing.holding.term import Term
from tasks.log import log

#: Seconds from the loss to the late result.
LATENESS = 3.0


@dataclass(frozen=True)
class Chaos:
    """Shares of tasks that crash the process, and whose renewals stall."""

    crashes: float = 0.05
    spikes: float = 0.10
    random: random.Random = field(default_factory=random.Random)

    def strike(self, hold: Term) -> bool:
        """Perhaps crash this process shortly, perhaps stall the renewals of ``hold``. Returns
        whether they stall."""
        drawn = self.random.random()
        if drawn < self.crashes:
            self._crash_soon(hold)
        elif drawn < self.crashes + self.spikes:
            log.chaos_stall(resource=hold.resource)
            hold.due_at = float("inf")
            return True
        return False

    def _crash_soon(self, hold: Term) -> None:
        delay = self.random.uniform(0.1, 2.0)
        log.chaos_crash(resource=hold.resource, seconds=delay)
        crash = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
        crash.daemon = True
        crash.start()

    def run_late(self, hold: Term) -> None:
        """Wait until a stalled ``hold`` is lost and, most likely, someone else's."""
        hold.lost.wait()
        threading.Event().wait(LATENESS)
