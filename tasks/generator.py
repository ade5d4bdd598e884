"""The generator: one process of many enqueues sample tasks while the desired state is running.

Start and stop write one row, the desired state, from any process; its revision rises each time. The
instance that holds the lease GENERATOR_LEASE generates; the others are on standby and take over
when it is gone. Each batch is stored in one transaction that first locks the desired state, so that
nothing is generated after a stop was committed. The first batch of a term raises the fence of that
row to the token of the lease: from then on the row refuses every generator before it, which may not
know yet that it was replaced. The lease itself is not read, so it may be in another database, or in
a lease service: GENERATOR_STORE. The acknowledgement is for display only.

Nobody but the generators asks another store than the rows of this database. Pages, commands and the
API show what is in this database: who acknowledged, and if that process sends heartbeats. So a
lease service that is away delays no answer here, and no stop.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import DEBUG, WARNING
from typing import Any

from django.db import Error, transaction
from django.db.models import F

from leasing import audit
from leasing.conf import leasing_settings
from leasing.db.dialects import lock
from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.fencing import FencedQuerySet
from leasing.functions import DbNow
from leasing.holding import Term
from leasing.models import Lease, LeaseState
from leasing.runtime.services import Service, run_services
from leasing.store import HoldOptions
from leasing.stores import stores
from leasing.stores.rows import RowStore
from tasks.conf import task_settings
from tasks.log import log
from tasks.models import GeneratorDesiredState, Task, Worker
from tasks.sample import LONGEST, SHORTEST, SLEEP

#: Seconds between two checks of a standby, and the longest pause between batches.
LOOK_EVERY = 0.5
#: Seconds for which a standby waits in one request of a store that pays for each.
WAIT_THERE = 2.0
#: Errors of a database or a store that may answer later.
AWAY = (Error, StoreError)
#: The longest pause in seconds between tries while it does not.
LONGEST_PAUSE = 5.0


@dataclass(frozen=True)
class GeneratorStatus:
    """The desired state of the generator, and its actual one."""

    is_running: bool
    status: str
    message: str
    desired: GeneratorDesiredState | None
    #: Its lease, where that is in rows of this database.
    lease: Lease | None
    #: The holder of the lease, as far as this database knows; empty if there is none.
    holder: str
    #: The alias of the store of the lease, where that is another one.
    store: str


def generator_status(*, if_used: bool = False) -> GeneratorStatus:
    """Return the status: STARTED (should run, does not generate yet), RUNNING or STOPPED.

    It is read only from the database, so every instance gives the same answer. With ``if_used``
    the lease is not read where nobody ever started or stopped the generator.
    """
    desired = GeneratorDesiredState.objects.first()
    store = "" if has_row() else task_settings.GENERATOR_STORE
    lease = None
    if store:
        holder = _present_acknowledger(desired)
    else:
        if desired is not None or not if_used:
            rows = Lease.objects.home().with_state()
            lease = rows.filter(resource=task_settings.GENERATOR_LEASE).first()
        holder = lease.holder if lease and lease.state == LeaseState.ACTIVE else ""

    def status(is_running: bool, status: str, message: str) -> GeneratorStatus:
        return GeneratorStatus(is_running, status, message, desired, lease, holder, store)

    if desired is None or not desired.wanted:
        return status(False, "STOPPED", _stopped_message(desired, holder))
    seen = desired.acknowledged_revision == desired.revision and desired.acknowledged_by == holder
    if holder and seen:
        return status(True, "RUNNING", f"The generator is running on {holder}.")
    return status(
        True, "STARTED", "The generator is started, but no instance has picked it up yet."
    )


def has_row() -> bool:
    """Return True if the lease of the generator is a row of this database."""
    kind = stores.kind_of(task_settings.GENERATOR_STORE)
    return leasing_settings.ENABLED and issubclass(kind, RowStore)


def _present_acknowledger(desired: GeneratorDesiredState | None) -> str:
    """Return the process that has begun to generate and not left since, if it sends heartbeats."""
    if desired is None or not desired.acknowledged_by:
        return ""
    if not desired.wanted and desired.acknowledged_revision == desired.revision:
        return ""  # it has left: it acknowledged the stop
    generators = Worker.objects.home().present().generators()
    is_present = generators.filter(name=desired.acknowledged_by).exists()
    return desired.acknowledged_by if is_present else ""


def is_used() -> bool:
    """Return True if somebody ever started or stopped it, or an instance of it ever ran."""
    return GeneratorDesiredState.objects.exists()


def _stopped_message(desired: GeneratorDesiredState | None, holder: str) -> str:
    if desired is None or not desired.revision:
        return "The generator was never started."
    by = f" by {desired.changed_by}" if desired.changed_by else ""
    if holder and desired.acknowledged_revision < desired.revision:
        return f"The generator was stopped{by}; {holder} has not acknowledged it yet."
    return f"The generator was stopped{by}."


def start_generator(by: str = "", reason: str = "", via: str = "") -> GeneratorStatus:
    """Set the desired state to running.

    Args:
        by: The operator.
        reason: The reason, for the audit.
        via: The way it was requested, for the audit.
    """
    _set_desired(True, by, reason, via)
    return generator_status()


def stop_generator(by: str = "", reason: str = "", via: str = "") -> GeneratorStatus:
    """Set the desired state to stopped. When this returns, no more tasks will be generated.
    Arguments are those of ``start_generator``."""
    _set_desired(False, by, reason, via)
    return generator_status()


def start_unless_asked() -> None:
    """Set the desired state to running, if nobody ever set it."""
    with transaction.atomic(using=leasing_settings.DATABASE):
        if _locked_desired().revision == 0:
            _write_desired(True, "run_generator", "started with the first generator")


def _set_desired(wanted: bool, by: str, reason: str, via: str) -> None:
    verb = "start" if wanted else "stop"
    with audit.recording(by, verb, GeneratorDesiredState, keys=[1], reason=reason, via=via) as act:
        if _write_desired(wanted, by, reason):
            act.changed = 1
        else:
            act.skipped = {"already in this state": 1}


def _write_desired(wanted: bool, by: str, reason: str) -> bool:
    """Write the desired state. Returns whether it was another."""
    with transaction.atomic(using=leasing_settings.DATABASE):
        desired = _locked_desired()
        if desired.revision and desired.wanted == wanted:
            return False
        GeneratorDesiredState.objects.update(
            wanted=wanted,
            revision=F("revision") + 1,
            changed_by=by[:200],
            changed_at=DbNow(),
            reason=reason[:500],
        )
    return True


def _locked_desired() -> GeneratorDesiredState:
    rows = GeneratorDesiredState.objects
    desired: GeneratorDesiredState | None = lock(rows.all()).first()
    if desired is not None:
        return desired
    rows.bulk_create([GeneratorDesiredState()], ignore_conflicts=True)
    made: GeneratorDesiredState = lock(rows.all()).get()
    return made


@dataclass
class Generator:
    """One instance. ``rate`` is in tasks a second; each sleeps ``shortest`` to ``longest``
    seconds; ``queue`` None is the sample handler's."""

    rate: float = 1.0
    shortest: float = SHORTEST
    longest: float = LONGEST
    queue: str | None = None
    ttl: float | None = None
    name: str | None = None
    #: The acknowledgement of a process of this name that was killed may still stand.
    _follows: bool = field(default=True, init=False)

    def run(self, stopping: threading.Event) -> None:
        """Stand by, or generate, until ``stopping``."""
        turns = Service(
            lambda: self.take_turn(stopping),
            log.generator_failed,
            longest=LONGEST_PAUSE,
            expected=AWAY,
            survives=AWAY,
        )
        run_services([turns], stopping)

    def take_turn(self, stopping: threading.Event) -> float:
        """Generate for as long as the desired state is running and the lease is held. Returns the
        seconds until the next turn."""
        if self._follows:
            self.withdraw(acknowledged_by=self.name)
            self._follows = False
        if not GeneratorDesiredState.objects.filter(wanted=True).exists():
            return LOOK_EVERY
        store = stores[task_settings.GENERATOR_STORE]
        options: HoldOptions = {
            "ttl": self.ttl,
            "holder": self.name,
            "wait": WAIT_THERE if store.is_metered else 0.0,
            "stopping": stopping,
        }
        try:
            with store.hold(task_settings.GENERATOR_LEASE, **options) as term:
                log.generator_leads(resource=term.resource, holder=term.holder)
                try:
                    self.generate(term, stopping)
                finally:
                    self.withdraw(fence=term.fencing_token)
        except (LeaseHeld, LeaseLost) as reason:
            level = WARNING if isinstance(reason, LeaseLost) else DEBUG
            log.generator_stands_by(level=level, reason=reason)
        return LOOK_EVERY

    def generate(self, term: Term, stopping: threading.Event) -> None:
        """Store as many tasks as the rate says, until ``stopping``, or no more are wanted. Raises
        what ``batch`` does."""
        interval = min(LOOK_EVERY, max(0.1, 1 / self.rate))
        owed = 1.0
        while not stopping.is_set() and self.batch(term, int(owed)):
            owed += interval * self.rate - int(owed)
            term.lost.wait(interval)
            term.ensure()

    def batch(self, term: Term, size: int) -> bool:
        """Store ``size`` tasks under the token of ``term``, and acknowledge the desired state.
        Returns True while the operator wants more. Raises LeaseLost; StaleToken where another
        generator has begun since."""
        term.ensure()
        using = leasing_settings.DATABASE
        with transaction.atomic(using=using):
            desired = _locked_desired()
            if (
                desired.fence != term.fencing_token
                or desired.acknowledged_revision != desired.revision
                or desired.acknowledged_by != term.holder
            ):
                FencedQuerySet(GeneratorDesiredState, using=using).fenced(term).update(
                    acknowledged_revision=F("revision"),
                    acknowledged_by=term.holder,
                    acknowledged_at=DbNow(),
                )
            if desired.wanted and size:
                Task.objects.home().enqueue_many(
                    SLEEP, [self._data() for _ in range(size)], queue=self.queue
                )
        return desired.wanted

    def withdraw(self, **whose: Any) -> None:
        """Take back an acknowledgement once its term has ended: nobody generates until the next
        begins. That of a stop stays."""
        GeneratorDesiredState.objects.filter(**whose).exclude(
            wanted=False, acknowledged_revision=F("revision")
        ).update(acknowledged_revision=0, acknowledged_by="", acknowledged_at=None)

    def _data(self, uniform: Callable[[float, float], float] = random.uniform) -> dict[str, float]:
        return {"sleep_duration_seconds": round(uniform(self.shortest, self.longest), 1)}
