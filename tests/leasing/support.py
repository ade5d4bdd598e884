"""Helpers of several tests of leases."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from unittest.mock import patch

from django.db import connection, connections, transaction
from django.test import override_settings

from leasing.exceptions import LeaseLost
from leasing.functions import after, next_token
from leasing.holding import Hold
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term
from leasing.models import Leasable, Lease, LeaseEvent
from leasing.runtime import clock as clocks
from leasing.runtime.aio import Steps
from leasing.store import Renewal, Renewals
from leasing.stores.rows import RowStore, term_of
from leasing.validation.terms import Terms

Result = TypeVar("Result")

#: Long enough for a loaded machine; nothing waits that long when all is well.
PATIENCE = 20.0
#: Settings under which holds that were granted for long are renewed often.
OFTEN = {"RENEW_EVERY": 0.05, "JITTER": 0}


# The server


def address() -> Any:
    """Return the address of the test database, for psycopg."""
    settings = connection.get_connection_params()
    known = ("dbname", "user", "password", "host", "port")
    return {key: settings[key] for key in known if key in settings}


@contextmanager
def refused_except_to_listen() -> Iterator[Callable[[], object]]:
    """A block in which new connections are refused, as by a pooler that is away, but for the one
    that LISTEN_URL leads around it. Yields what makes them succeed again."""
    import psycopg

    around = psycopg.conninfo.make_conninfo(**address())
    database = connections.settings["default"]
    port = database["PORT"]
    with override_settings(LEASING={"LISTEN_URL": around}), patch.dict(database, PORT="1"):
        yield lambda: database.update(PORT=port)


# What others do to a row


def expire(lease: Leasable) -> None:
    """Move the deadline of ``lease`` into the past, in the database only."""
    rows = type(lease)._default_manager.filter(pk=lease.pk)
    rows.update(expires_at=after(timedelta(seconds=-1)))


def usurp(lease: Leasable, holder: str = "thief") -> None:
    """Term the row of ``lease`` to ``holder``, even if it is held."""
    rows = type(lease)._default_manager.filter(pk=lease.pk)
    rows.update(grant_id=uuid.uuid4(), **rows.granting(Terms.check(holder=holder, ttl=60)))


def revoke_ahead_of_the_clock(lease: Leasable) -> None:
    """Mark the row revoked, by a clock that has since been set back: the deadline still lies
    ahead, and only ``released_at`` says that the term is over."""
    rows = type(lease)._default_manager.filter(pk=lease.pk)
    rows.update(
        released_at=after(timedelta(seconds=60)),
        expires_at=after(timedelta(seconds=50)),
        fencing_token=next_token(),
    )


def stored(lease: Leasable) -> dict[str, Any]:
    """The lease columns of the row as the database has them."""
    rows = type(lease)._default_manager.filter(pk=lease.pk)
    row: dict[str, Any] = rows.values(*type(lease).verb_columns).get()
    return row


def grants(*leases: Leasable) -> dict[Any, uuid.UUID]:
    """Keys and grants of ``leases``, as they are renewed together."""
    return {lease.pk: lease.grant_id for lease in leases if lease.grant_id}


def events(resource: str) -> list[str]:
    """Return the ledger's events of ``resource``, oldest first."""
    of_resource = LeaseEvent.objects.filter(resource=resource)
    return list(of_resource.order_by("id").values_list("kind", flat=True))


def held_names() -> list[str]:
    """Return the names that are held, in their order."""
    held = Lease.objects.active().order_by("resource")
    return list(held.values_list("resource", flat=True))


@contextmanager
def just_before_the_update(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Do ``meanwhile`` between a verb's lock and its update, as could happen on a database
    without row locks; where both are one statement, just before that. Fails when the verb sends
    no update."""
    with _when(("UPDATE", "WITH"), meanwhile, before=True):
        yield


@contextmanager
def just_before_the_deletion(meanwhile: Callable[[], object]) -> Iterator[None]:
    """As before an update, but before a DELETE."""
    with _when(("DELETE",), meanwhile, before=True):
        yield


@contextmanager
def just_after_the_lock(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Do ``meanwhile`` when an operator's verb has locked its rows: what it does is what others
    may have done while the lock was waited for."""
    with _when(("SELECT",), meanwhile, before=False):
        yield


@contextmanager
def just_after_the_commit(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Do ``meanwhile`` when a verb has committed, but has not returned. For tests that run in
    a transaction, where the verb's own is a savepoint, or it is one statement."""
    with _when(("RELEASE SAVEPOINT", "WITH"), meanwhile, before=False):
        yield


@contextmanager
def _when(
    statements: tuple[str, ...], meanwhile: Callable[[], object], before: bool
) -> Iterator[None]:
    waiting = [meanwhile]

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        its_time = bool(waiting) and sql.lstrip().startswith(statements)
        if its_time and before:
            waiting.pop()()
        result = execute(sql, params, many, context)
        if its_time and not before:
            waiting.pop()()
        return result

    with connection.execute_wrapper(wrapper):
        yield
    assert not waiting, f"no {statements[0]} was sent"


class OtherSession:
    """A second session on the database: its own thread, its own connection."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._transaction: transaction.Atomic | None = None

    def start(self, work: Callable[..., Result], *args: Any) -> Future[Result]:
        return self._thread.submit(work, *args)

    def run(self, work: Callable[..., Result], *args: Any) -> Result:
        return self.start(work, *args).result(PATIENCE)

    def begin(self) -> None:
        self._transaction = transaction.atomic()
        self.run(self._transaction.__enter__)

    def commit(self) -> None:
        if self._transaction is not None:
            self.run(self._transaction.__exit__, None, None, None)
            self._transaction = None

    def lock(self, row: Leasable) -> None:
        """Begin a transaction and lock ``row`` in it."""
        self.begin()
        rows = type(row)._default_manager.filter(pk=row.pk).select_for_update()
        self.run(lambda: list(rows))

    def close(self) -> None:
        self.commit()
        self.run(connections.close_all)
        self._thread.shutdown()


@contextmanager
def under_repeatable_read() -> Iterator[None]:
    """Have new connections to the database at PostgreSQL's second strictest isolation level."""
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    options = connection.settings_dict["OPTIONS"]
    before = dict(options)
    connection.close()
    options["isolation_level"] = IsolationLevel.REPEATABLE_READ
    try:
        yield
    finally:
        connection.close()
        options.clear()
        options.update(before)


@contextmanager
def after_a_query_before(part: str, call: Callable[[], object]) -> Iterator[None]:
    """Call ``call`` before the first statement with ``part`` in it, when the transaction has asked
    the database something: under a strict isolation level it sees no later state."""
    calls = [call]

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if part in sql and calls:
            context["cursor"].execute("SELECT 1")
            calls.pop()()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        yield
    assert not calls


# Holds without a database, keepers without time


class FakeClock:
    """The holder's clock, moved by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def stopped_clock() -> Iterator[FakeClock]:
    """A block in which the clock of all holders of this process stands still, unless the test
    moves it; the database's goes on."""
    stopped = FakeClock(clocks.system_clock())
    with patch.object(clocks, "system_clock", stopped):
        yield stopped


def far_away() -> datetime:
    return datetime(2100, 1, 1, tzinfo=UTC)


#: The ttl of each grant that no database knows.
TTLS: dict[uuid.UUID, float] = {}


class FakeStore:
    """A store that answers what it is told to: by default, that all was renewed."""

    is_metered = False

    def __init__(self) -> None:
        self.answer: Callable[[Mapping[Any, uuid.UUID]], Renewals] = self.renew_all
        self.calls: list[dict[Any, uuid.UUID]] = []
        self.timeouts: list[float] = []
        self.opened: list[threading.Thread] = []
        self.closed: list[threading.Thread] = []
        self.released: list[Term] = []
        self.losses: list[str] = []
        self.refusals: list[str] = []
        self.release_error: Exception | None = None
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1

    def open(self) -> None:
        self.opened.append(threading.current_thread())

    def close(self) -> None:
        self.closed.append(threading.current_thread())

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        self.calls.append(dict(grants))
        self.timeouts.append(timeout)
        return self.answer(grants)

    def release(self, grant: Term) -> None:
        if self.release_error is not None:
            raise self.release_error
        self.released.append(grant)

    def lost(self, grant: Term, reason: str) -> None:
        self.losses.append(reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        self.refusals.append(verb)

    @contextmanager
    def proving(self, row: Any) -> Iterator[None]:
        yield

    @staticmethod
    def renew_all(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        return Renewals({k: Renewal(far_away(), TTLS[grant]) for k, grant in grants.items()})

    @staticmethod
    def lose_all(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        return Renewals(lost=dict.fromkeys(grants, "thief has held it"))

    @staticmethod
    def all_busy(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        return Renewals()

    @staticmethod
    def fail(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        raise ConnectionError("the database is away")


def granted(
    key: Any = 1, ttl: float = 30.0, sent_at: float = 0.0, store: Any = None, token: int = 7
) -> Term:
    """A grant that no database knows."""
    grant_id = uuid.uuid4()
    TTLS[grant_id] = ttl
    return Term(
        key=key,
        grant_id=grant_id,
        fencing_token=token,
        holder="me",
        resource=f"crane:{key}",
        ttl=ttl,
        remaining=ttl,
        sent_at=sent_at,
        expires_at=far_away(),
        store=store,
    )


def at_once(grant: Callable[[], Term]) -> Callable[[], Steps[Term]]:
    """Acquiring in one step."""

    def steps() -> Steps[Term]:
        answer: Term = yield grant
        return answer

    return steps


def hold_of(
    store: FakeStore, keeper: Keeper, key: Any = 1, ttl: float = 30.0, on_lost: Any = None
) -> Hold:
    """A hold that gets a grant from ``store``, not yet entered."""
    acquire = at_once(lambda: granted(key, ttl, keeper.clock()))
    return Hold(store, acquire, on_lost=on_lost, keeper=keeper)


class ByHand:
    """A keeper that does nothing by itself, its clock, and its store: the test moves all three."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.keeper = Keeper(clock=self.clock, threads=False)
        self.store = FakeStore()
        #: The holds that were reported lost.
        self.reported: list[Term] = []

    @property
    def now(self) -> float:
        return self.clock.now

    def hold(self, key: Any = 1, ttl: float = 30, store: FakeStore | None = None) -> Hold:
        """A hold, not yet entered, whose loss goes to ``reported``."""
        return hold_of(store or self.store, self.keeper, key, ttl, self.reported.append)

    def enter(self, *keys: Any, ttl: float = 30, store: FakeStore | None = None) -> list[Term]:
        return [self.hold(key, ttl, store).__enter__() for key in keys or (1,)]

    def after(self, seconds: float = 10) -> None:
        """Let time pass in which nothing runs, and do then what the keeper's threads would do."""
        self.clock.advance(seconds)
        if any(term.due_at <= self.now for term in self.keeper.holds):
            self.keeper.renew_due()
        self.keeper.declare_lost()

    def slowly(self, seconds: float) -> Callable[[Mapping[Any, uuid.UUID]], Renewals]:
        """An answer that takes so long."""

        def answer(grants: Mapping[Any, uuid.UUID]) -> Renewals:
            self.clock.advance(seconds)
            return FakeStore.renew_all(grants)

        return answer

    def lose(self, hold: Term) -> None:
        """Have the store answer that the hold is lost."""
        before, self.store.answer = self.store.answer, self.store.lose_all
        try:
            with suppress(LeaseLost):
                hold.renew()
        finally:
            self.store.answer = before


def row_hold(
    keeper: Keeper,
    resource: str = "crane:1",
    ttl: float = 30.0,
    on_lost: Any = None,
    kind: type[RowStore] = RowStore,
) -> Hold:
    """A hold on a row of the database that ``keeper`` renews, not yet entered."""

    def acquire() -> Term:
        sent_at = keeper.clock()
        grant = term_of(Lease.objects.acquire(resource, ttl=ttl))
        grant.sent_at = sent_at
        return grant

    store = kind(Lease, "default", type(Lease.lease_rows()))
    return Hold(store, at_once(acquire), on_lost=on_lost, keeper=keeper)


def enter(store: FakeStore, keeper: Keeper, *keys: Any, **options: Any) -> list[Term]:
    """Holds on ``keys`` of ``store``, entered."""
    holds = [hold_of(store, keeper, key, **options) for key in keys]
    return [hold.__enter__() for hold in holds]


class Hanging:
    """A renewal that hangs in the network until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, grants: Mapping[Any, uuid.UUID]) -> Renewals:
        self.reached.set()
        self.let_go.wait(PATIENCE)
        return FakeStore.renew_all(grants)


def have_ended(threads: list[threading.Thread]) -> bool:
    return not any(thread.is_alive() for thread in threads)
