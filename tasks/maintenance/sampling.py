"""Samples: every ten seconds what went on in each queue, for the charts.

One worker writes them: the holder of the lease "leasing_tasks.sampling". Each looks once a slot
whether anybody holds it, which costs an idle worker less than waiting in a campaign. The sampler
renews its lease itself as it comes to a slot, which the keeper would do more often. What it writes
is counted from the ledgers again (``tasks.maintenance.counting``), so a successor fills in what
was missed; only how deep the queues were then is lost. A slot that is
written twice is the same twice, so nothing depends on the lease but how much is asked of the
database. In a slot in which nothing happened, the sampler asks one question and writes zeros.

Renewals alone leave no trace but the last: every worker adds those of its keeper to the slot.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final

from django.db import Error, connections, transaction
from django.db.models import F

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseError
from leasing.functions import database_now
from leasing.holding.keeper import Keeper, keeper
from leasing.models import Lease
from leasing.runtime.clock import clock
from leasing.runtime.services import Service
from tasks.conf import task_settings
from tasks.log import log
from tasks.maintenance.counting import RESOURCE, Activity, Slot, count, depths
from tasks.models import Queue, Sample

#: Seconds after which another worker samples when the sampler is gone, and the seconds before
#: their end from which a turn renews the lease, once a minute: more than the longest time between
#: two turns.
TTL: Final = 76.0
RENEWED_BEFORE: Final = 25.0
#: In how many turns the sampler looks for new queues, and deletes what is old.
NAMES_EVERY, PRUNED_EVERY = 12, 60
#: Seconds after its end when a slot is counted: what was begun in it has been committed by then.
LAG: Final = 2.0
#: Seconds later that a turn comes, so that no clock makes it come too early.
LATE: Final = 0.05
#: Samples that one statement stores: with 19 values each, fewer than SQLite's 999 at the least.
STORED_TOGETHER: Final = 50
#: Missed slots that are filled in later.
MAX_MISSED: Final = 30
#: Columns of a sample of a queue, apart from those of workers.
COLUMNS: Final = [
    *("ready", "scheduled", "running"),
    *("enqueued", "claimed", "completed", "failed", "cancelled", "retried", "recovered"),
    *("oldest", "wait_p50", "wait_p95", "handlers", "expirations", "releases"),
]


def take() -> int:
    """Write the slots that are over and have no sample. Returns how many."""
    return fill(Activity.of_now(), queues())


def fill(activity: Activity, names: Collection[str]) -> int:
    """``take``, where the queues have these ``names``."""
    newest = Slot.before(activity.now - timedelta(seconds=LAG)).number
    oldest = newest - (MAX_MISSED - 1) * Sample.SLOT
    sampled = activity.sampled
    first = newest if sampled is None else max(oldest, sampled + Sample.SLOT)
    slots = range(first, newest + 1, Sample.SLOT)
    rows: list[Sample] = []
    for number in slots:
        rows += samples(Slot(number), activity, names, is_newest=number == newest)
        if number == newest or len(rows) >= STORED_TOGETHER:
            store(rows)
            rows = []
    return len(slots)


def store(rows: list[Sample]) -> None:
    """Write ``rows``, or over those of their slot and queue, all or none. Mostly that is one
    statement, where ``bulk_create`` sends three: it begins and ends a transaction for each."""
    connection = connections[Sample.objects.all().db]
    fields = [field for field in Sample._meta.concrete_fields if not field.primary_key]
    names = ", ".join(field.attname for field in fields)
    updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS)
    values = f"({', '.join(['%s'] * len(fields))})"
    parts = [rows[n : n + STORED_TOGETHER] for n in range(0, len(rows), STORED_TOGETHER)]
    block = transaction.atomic(using=connection.alias) if len(parts) > 1 else nullcontext()
    with block, connection.cursor() as cursor:
        for part in parts:
            cursor.execute(
                f"INSERT INTO leasing_tasks_sample ({names})"
                f" VALUES {', '.join([values] * len(part))}"
                f" ON CONFLICT (slot, queue) DO UPDATE SET {updates}",
                [
                    field.get_db_prep_save(getattr(row, field.attname), connection)
                    for row in part
                    for field in fields
                ],
            )


def queues() -> set[str]:
    """The names of the queues that there are."""
    rows = Queue.objects.home()
    return {*task_settings.QUEUES, *rows.values_list("name", flat=True)}


def samples(
    slot: Slot, activity: Activity, names: Collection[str], *, is_newest: bool
) -> list[Sample]:
    """Return the samples of a slot: one for each queue, and one for leases.

    Args:
        slot: The slot, which is over.
        activity: The latest events, which tell a slot without any.
        names: The names of the known queues. Others that had an event get a sample, too.
        is_newest: True to count also how many tasks wait and run. Of an older slot that is known
            only if nothing has happened since.
    """
    columns: dict[str, dict[str, Any]] = {name: {} for name in (*names, "")}
    if not activity.is_quiet(slot):
        for queue, counts in count(slot).items():
            columns.setdefault(queue, {}).update(counts)
    if is_newest or activity.is_idle(slot):
        none = {"ready": 0, "scheduled": 0, "running": 0, "oldest": 0.0}
        found = dict.fromkeys(names, none)
        if activity.is_any_live:
            found = depths(sorted(names), activity.now)
        for queue, depth in found.items():
            columns.setdefault(queue, {}).update(depth)
    return [Sample(queue=queue, slot=slot.number, **columns[queue]) for queue in sorted(columns)]


def prune() -> int:
    """Delete samples that are older than SAMPLE_RETENTION. Returns how many."""
    age = task_settings.SAMPLE_RETENTION
    if age is None:
        return 0
    kept = age if isinstance(age, timedelta) else timedelta(seconds=age)
    first = Slot.before(database_now(leasing_settings.DATABASE) - kept).number
    return Sample.objects.filter(slot__lt=first).delete()[0]


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
        slot = Slot.before(database_now(leasing_settings.DATABASE)).number + Sample.SLOT
        mine = Sample.objects.filter(slot=slot, queue="")
        if not mine.update(renewals=F("renewals") + new):
            Sample.objects.bulk_create([Sample(slot=slot, queue="")], ignore_conflicts=True)
            mine.update(renewals=F("renewals") + new)
        self._added = renewals
        return new


class Sampler:
    """Samples as long as it has the lease, and tries for that when nobody has it."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._term: Lease | None = None
        self._names: set[str] = set()
        self._turns = 0

    def service(self) -> Service:
        """Takes turns, and gives the lease back at its end."""
        # Workers that start together begin apart.
        starts_in = Sample.SLOT * random.uniform(0.1, 0.6)
        return Service(self.tick, log.sampling_failed, close=self.end, starts_in=starts_in)

    def tick(self) -> float:
        """Take a turn, or leave it to another."""
        if not task_settings.SAMPLES:
            return Sample.SLOT
        try:
            return self.turn()
        except LeaseError as reason:
            self._term = None
            log.sampling_left_to_another(reason=reason)
            return Sample.SLOT * random.uniform(0.8, 1.0)

    def turn(self) -> float:
        """Write the samples of a slot. Returns for how many seconds there is nothing to do. Raises
        LeaseHeld, when another was faster; LeaseLost."""
        self._tally.add()
        leases = Lease.objects.home()
        if self._term is None:
            if leases.filter(resource=RESOURCE).active().exists():
                return Sample.SLOT * random.uniform(0.8, 1.0)
            self._term = leases.acquire(RESOURCE, ttl=TTL, wait=0)
        elif self._term.sent_at + TTL - clock() < RENEWED_BEFORE:
            sent_at = clock()
            leases.renew(self._term)
            self._term.sent_at = sent_at
        if not self._turns % NAMES_EVERY:
            self._names = queues()
        asked_at, activity = clock(), Activity.of_now()
        fill(activity, self._names)
        if self._turns % PRUNED_EVERY == NAMES_EVERY:  # not as it begins: others do so too
            prune()
        self._turns += 1
        left = Sample.SLOT - (activity.now.timestamp() - LAG) % Sample.SLOT
        return max(0.0, left - (clock() - asked_at)) + LATE

    def end(self) -> None:
        """Give the lease back, so that another worker can sample at once."""
        term, self._term = self._term, None
        try:
            if term is not None:
                Lease.objects.home().release(term)
        except (Error, LeaseError) as reason:
            log.sampling_left_to_its_end(reason=reason)
