"""Samples: every ten seconds what went on in each queue, for the charts.

One of all workers writes them, whoever holds the lease "tasks.sampling": each tries for it once
a slot, which costs an idle worker less than waiting in a campaign. What it writes is counted
anew from the ledgers (``tasks.counting``), so a successor fills in what nobody wrote meanwhile;
only how deep the queues were then, nobody knows any more. A slot that is written twice is the
same twice.

Renewals alone leave no trace but the last: every worker adds those of its keeper to the slot.
"""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from typing import Any, Final

from django.db import Error, close_old_connections, connections
from django.db.models import F

from leasing.conf import leasing_settings
from leasing.eventlog import get_logger
from leasing.exceptions import LeaseError
from leasing.functions import database_now
from leasing.hold import Hold
from leasing.keeper import Keeper, keeper
from leasing.models import Lease
from tasks.conf import task_settings
from tasks.counting import Slot, count, depths
from tasks.models import Queue, Sample

logger = get_logger("tasks.sampling")

RESOURCE: Final = "tasks.sampling"
#: Seconds after which another samples when the one who did is gone.
TTL: Final = 15.0
#: Seconds after its end when a slot is counted: what was begun in it has been committed by then.
LAG: Final = 2.0
#: How many slots that nobody wrote are made up for.
MOST_MISSED: Final = 30
#: What a sample says of a queue, apart from what workers add.
COLUMNS: Final = [
    *("ready", "scheduled", "running"),
    *("enqueued", "claimed", "completed", "failed", "cancelled", "retried", "recovered"),
    *("wait_p50", "wait_p95", "expirations", "releases"),
]


def take() -> int:
    """Write the slots that are over and have no sample. Returns how many."""
    using = leasing_settings.DATABASE
    newest = Slot.before(database_now(using) - timedelta(seconds=LAG)).number
    samples = Sample.objects.using(using)
    sampled = samples.exclude(queue="").order_by("-slot").values_list("slot", flat=True).first()
    oldest = newest - (MOST_MISSED - 1) * Sample.SLOT
    first = newest if sampled is None else max(oldest, sampled + Sample.SLOT)
    slots = range(first, newest + 1, Sample.SLOT)
    for number in slots:
        write(Slot(number), is_newest=number == newest)
    return len(slots)


def write(slot: Slot, *, is_newest: bool) -> None:
    """Write the samples of ``slot``: one for each queue that there is or that had something, and
    one for leases. How deep the queues are is noted for the newest slot alone."""
    using = leasing_settings.DATABASE
    names = {*task_settings.QUEUES, *Queue.objects.using(using).values_list("name", flat=True)}
    columns: dict[str, dict[str, Any]] = {name: {} for name in (*names, "")}
    for queue, counts in count(slot).items():
        columns.setdefault(queue, {}).update(counts)
    if is_newest:
        for queue, depth in depths(sorted(names)).items():
            columns.setdefault(queue, {}).update(depth)
    rows = [Sample(queue=queue, slot=slot.number, **columns[queue]) for queue in sorted(columns)]
    _store(rows, using)


def prune() -> int:
    """Delete samples that are older than SAMPLE_RETENTION. Returns how many."""
    age = task_settings.SAMPLE_RETENTION
    if age is None:
        return 0
    using = leasing_settings.DATABASE
    kept = age if isinstance(age, timedelta) else timedelta(seconds=age)
    first = Slot.before(database_now(using) - kept).number
    return Sample.objects.using(using).filter(slot__lt=first).delete()[0]


class Tally:
    """The renewals of this process that no sample has yet."""

    def __init__(self, keeper: Keeper = keeper) -> None:
        self._keeper = keeper
        self._added = keeper.renewals

    def add(self) -> int:
        """Add them to the slot that runs now. Returns how many."""
        renewals = self._keeper.renewals
        new = renewals - self._added
        if new <= 0:
            return 0
        using = leasing_settings.DATABASE
        slot = Slot.before(database_now(using)).number + Sample.SLOT
        mine = Sample.objects.using(using).filter(slot=slot, queue="")
        if not mine.update(renewals=F("renewals") + new):
            Sample.objects.using(using).bulk_create(
                [Sample(slot=slot, queue="")], ignore_conflicts=True
            )
            mine.update(renewals=F("renewals") + new)
        self._added = renewals
        return new


def run_until(stopping: threading.Event) -> None:
    """Sample whenever nobody else does, until ``stopping``, whatever happens between."""
    tally = Tally()
    # Workers that start together begin apart.
    stopping.wait(Sample.SLOT * random.uniform(0.5, 1.0))
    while not stopping.is_set() and task_settings.SAMPLES:
        try:
            close_old_connections()
            tally.add()
            with Lease.objects.hold(RESOURCE, ttl=TTL, wait=0) as term:
                _lead(term, tally, stopping)
        except LeaseError as reason:
            logger.debug(
                "sampling is left to another: %s",
                reason,
                event="sampling.left_to_another",
                reason=reason,
            )
        except Error as error:
            connections.close_all()
            logger.warning(
                "sampling failed, and is tried again: %s",
                error,
                event="sampling.failed",
                error=error,
            )
        except Exception:
            logger.exception("sampling failed, and is tried again", event="sampling.failed")
        stopping.wait(Sample.SLOT * random.uniform(0.8, 1.0))
    connections.close_all()


def _lead(term: Hold, tally: Tally, stopping: threading.Event) -> None:
    while term.valid and not stopping.is_set():
        if take():
            prune()
        tally.add()
        now = database_now(leasing_settings.DATABASE).timestamp()
        stopping.wait(Sample.SLOT - (now - LAG) % Sample.SLOT)


def _store(rows: list[Sample], using: str) -> None:
    has_target = connections[using].features.supports_update_conflicts_with_target
    Sample.objects.using(using).bulk_create(
        rows,
        update_conflicts=True,
        update_fields=COLUMNS,
        unique_fields=["slot", "queue"] if has_target else None,
    )
