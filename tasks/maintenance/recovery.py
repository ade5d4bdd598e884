"""The controller: finds tasks whose holder is gone, and every other state that must not be.

    sweep     when the next lease of a task runs out unless it is renewed, and at the latest after
              SWEEP_EVERY seconds, or the ttl of this process's tasks, in every controller: takes
              back what has expired
    examine   about every EXAMINE_EVERY seconds, in one of them: checks the invariants
    children  about every LEFT_BEHIND_EVERY seconds, in one of them, where a task was stopped
              lately: checks that no child is left open by the cancellation of its parent
    prune     about every PRUNE_EVERY seconds, in one of them: see
              ``tasks.maintenance.housekeeping``

A controller runs in every worker, and alone under ``manage.py run_recovery``. It is never a
task in the queue it repairs, and none is elected: its repairs are conditional updates over rows
locked with SKIP LOCKED, so any number may run, and a dying one delays nothing. That one of many
examines at a time is to spare the database, and nothing depends on it.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from leasing.runtime.services import LONGEST_TICK, Service
from leasing.validation.names import check_ttl
from tasks.conf import task_settings
from tasks.log import log
from tasks.maintenance.invariants import (
    INVARIANTS,
    LEFT_BEHIND,
    MAX_NAMED,
    Finding,
    Invariant,
    in_batches,
    is_anything_amiss,
)
from tasks.models import Task

#: Seconds until the next sweep where there was something to recover: others may be at it.
SHORT_PAUSE = 0.5
#: By so many seconds at most do sweepers miss a deadline for which all of them wake up.
SPREAD = 0.05


@dataclass
class Report:
    """The findings of one examination."""

    #: True if nothing was changed.
    dry_run: bool = False
    findings: list[Finding] = field(default_factory=list)

    @property
    def repaired(self) -> int:
        return sum(finding.repaired for finding in self.findings)

    @property
    def repairable(self) -> int:
        return sum(finding.count for finding in self.findings if finding.remedy)

    @property
    def suspected(self) -> int:
        """Return the number of violations that are only reported."""
        return sum(finding.count for finding in self.findings if not finding.remedy)

    def as_json(self) -> dict[str, Any]:
        return {"dry_run": self.dry_run, "findings": [asdict(each) for each in self.findings]}


@dataclass
class Totals:
    """The work of recovery in this process since it started, by kind: for metrics."""

    repaired: Counter[str] = field(default_factory=Counter)
    #: Each row once, for as long as it is found again and again.
    suspected: Counter[str] = field(default_factory=Counter)
    #: The moment of its last successful look for stuck tasks: seconds since 1970, by this host.
    succeeded_at: float | None = None


totals = Totals()
#: Violations that were reported already, by kind: the same rows are not reported every minute.
_suspects: dict[str, set[int]] = {}


def sweep() -> int:
    """Recover every stuck or stalled task there is now. Returns how many."""
    total, pause = 0, 0.0
    while not pause:
        recovered, pause = _sweep()
        total += recovered
    return total


def _sweep(longest: float = math.inf) -> tuple[int, float]:
    """Recover some of what there is. Returns how much, and in how many seconds to look again,
    ``longest`` at most: at once while there is more."""
    pause = min(task_settings.SWEEP_EVERY, longest) * random.uniform(0.95, 1.0)
    lapse_in = Task.objects.next_lapse_in()
    if lapse_in is None:
        return 0, pause
    if lapse_in:
        return 0, min(pause, lapse_in + random.uniform(0.0, SPREAD))
    total, until = 0, clock() + LONGEST_TICK
    for recover in (Task.objects.recover, Task.objects.recover_stalled):
        recovered = in_batches(recover, until)
        totals.repaired["expired"] += recovered
        total += recovered
    # A slow statement that found nothing is no sign of more.
    has_more = total > 0 and clock() >= until
    return total, 0.0 if has_more else min(pause, SHORT_PAUSE)


def examine(dry_run: bool = False) -> Report:
    """Check the invariants: repair what can be, report the rest. ``dry_run`` only looks."""
    if is_anything_amiss():
        findings = [_examine(invariant, dry_run) for invariant in INVARIANTS]
        return Report(dry_run, [finding for finding in findings if finding is not None])
    if not dry_run:
        _suspects.clear()
    return Report(dry_run)


def cancel_left_behind() -> int:
    """Check this invariant alone, more often than all: what is cancelled soon ends. Returns how
    many tasks were cancelled."""
    finding = _examine(LEFT_BEHIND, dry_run=False)
    return finding.repaired if finding else 0


def _examine(invariant: Invariant, dry_run: bool) -> Finding | None:
    found = invariant.find()
    repaired = 0
    if found and not dry_run:
        repaired = invariant.repair(invariant) if invariant.remedy else 0
        totals.repaired[invariant.kind] += repaired
    if not dry_run and not invariant.remedy:
        _tell_suspects(invariant, found)
    if not found:
        return None
    keys = [row.pk for row in found[:MAX_NAMED]]
    model = found[0]._meta.model_name
    count = max(len(found), repaired)
    return Finding(invariant.kind, invariant.what, invariant.remedy, count, repaired, keys, model)


def _tell_suspects(invariant: Invariant, found: list[Any]) -> None:
    """Log, count and signal the rows that this process has not reported yet."""
    known = _suspects.get(invariant.kind, set())
    _suspects[invariant.kind] = {row.pk for row in found}
    news = [row for row in found if row.pk not in known]
    if not news:
        return
    totals.suspected[invariant.kind] += len(news)
    named = ", ".join(str(row) for row in news[:MAX_NAMED]) + (", ..." if news[MAX_NAMED:] else "")
    log.recovery_suspected(kind=invariant.kind, what=invariant.what, found=len(news), rows=named)
    for row in news:
        if isinstance(row, Task):
            happened("task.suspected", [row], kind=invariant.kind, what=invariant.what)


def service(
    found: Callable[[], object] = lambda: None, ttl: float | timedelta | None = None
) -> Service:
    """Sweeps in every process that recovers. ``found`` is called after a sweep that recovered
    something. ``ttl`` is that of the tasks of this process, the setting by default: one that is
    claimed just after a look cannot lapse before the next."""

    def tick() -> float:
        recovered, pause = _sweep(check_ttl(ttl).total_seconds())
        totals.succeeded_at = time.time()
        if recovered:
            found()
        return pause

    return Service(tick, log.recovery_failed)
