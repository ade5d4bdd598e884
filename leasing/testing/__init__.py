"""For your own tests: leases that expire when you say so, and rivals that are not there.

    from leasing.testing import assert_held, expire, hold_elsewhere, manual_keeper

No test needs to sleep, and all of it works inside the transaction that Django's ``TestCase``
and pytest-django wrap around a test. Where a function takes ``what``, give it a hold, a row of
any ``Leasable`` model, or the name of a resource. Twins that begin with ``a`` are for async tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any
from unittest import TestResult

from asgiref.sync import sync_to_async
from django.test import TestCase, override_settings

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseLost
from leasing.holding import Term
from leasing.models import Leasable, LeaseEvent, LeaseState
from leasing.runtime import clock as clocks
from leasing.stores.memory import MemoryStore, clear_all, memory
from leasing.testing.keeper import ManualKeeper, manual_keeper
from leasing.testing.subject import What, situation, subject_of
from leasing.validation.terms import Terms

__all__ = [
    "LeasingTestCase",
    "LeasingTestMixin",
    "ManualKeeper",
    "aassert_free",
    "aassert_held",
    "aevents_of",
    "aexpire",
    "arevoke",
    "assert_free",
    "assert_held",
    "assert_lost",
    "events_of",
    "expire",
    "hold_elsewhere",
    "in_memory",
    "manual_keeper",
    "revoke",
]

SOMEONE = "someone else"


# What happens to a lease


def expire(what: What, *, ago: float = 0.0) -> None:
    """Move the expiry of the lease on ``what`` to ``ago`` seconds ago, and its earlier times by as
    much.

    If ``what`` is a hold, it is lost at once, as if no renewal had been answered in time. If it is
    a row or a name, only the stored lease ends, and the holder learns of that at its next renewal,
    as in production. A grace counts from the new expiry, so ``ago`` can include it.

    Raises AssertionError when nobody has it.
    """
    subject = subject_of(what)
    row = subject.look()
    if row is None or row.released_at is not None or not row.grants:
        raise AssertionError(f"{subject.resource} cannot expire: {situation(row)}.")
    back = row.expires_at - row.now + timedelta(seconds=ago)
    if back > timedelta(0):
        names = ("acquired_at", "renewed_at", "expires_at", "ends_at")
        times = {name: getattr(row, name) for name in names if name in row.verb_columns}
        subject.change({name: time - back for name, time in times.items() if time is not None})
    if isinstance(what, Term):
        what.mark_lost(what.overdue_reason)
    _write_notes()


def revoke(what: What, reason: str = "revoked by a test", by: str = "a test") -> None:
    """Revoke the lease on ``what``, as an operator would. The holder learns of it at its next
    renewal: ``manual_keeper().renew()``. Raises AssertionError if nobody holds it.

    Args:
        what: A hold, a row, or the name of a resource.
        reason: The reason given to the holder.
        by: The operator.
    """
    subject = subject_of(what)
    if not subject.revoke(reason, by):
        raise AssertionError(f"{subject.resource} cannot be revoked: {situation(subject.look())}.")


class hold_elsewhere(AbstractContextManager[Any], AbstractAsyncContextManager[Any]):
    """A block, plain or async, in which another process holds a lease. It yields the leased row.
    Nobody renews the lease.

    Args:
        what: A leasable row, or the name of a resource.
        holder: The name of the other process.
        ttl: Seconds after which the lease expires; the setting MAX_TTL by default.

    Raises LeaseHeld if somebody holds it already.
    """

    def __init__(
        self, what: Leasable | str, holder: str = SOMEONE, *, ttl: float | None = None
    ) -> None:
        self._place = subject_of(what)
        ttl = leasing_settings.MAX_TTL if ttl is None else ttl
        self._terms = Terms.check(holder=holder, ttl=ttl)

    def __enter__(self) -> Any:
        row, self._give_back = self._place.acquire(self._terms)
        return row

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(LeaseLost):  # the test has taken it away
            self._give_back()

    async def __aenter__(self) -> Any:
        return await sync_to_async(self.__enter__)()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await sync_to_async(self.__exit__)(kind, error, trace)


# What a test asserts


def assert_held(what: What, by: str | Term | None = None) -> None:
    """Assert that ``what`` is held now, ``by`` that holder or under that term."""
    subject = subject_of(what)
    row = subject.look()
    if row is None or row.lease_state(row.now) != LeaseState.ACTIVE:
        raise AssertionError(f"{subject.resource} is not held: {situation(row)}.")
    if isinstance(by, Term) and by.grant_id != row.grant_id:
        raise AssertionError(f"{subject.resource} is not held under that grant: {situation(row)}.")
    if isinstance(by, str) and by != row.holder:
        raise AssertionError(f"{subject.resource} is held by {row.holder!r}, not by {by!r}.")


def assert_free(what: What) -> None:
    """Assert that ``what`` can be acquired now: nobody holds it, and no grace runs."""
    subject = subject_of(what)
    row = subject.look()
    if row is None or not row.grants or row.released_at is not None:
        return
    grace = row.grace if "grace" in row.verb_columns else timedelta(0)
    if row.expires_at + grace > row.now:
        raise AssertionError(f"{subject.resource} is not free: {situation(row)}.")


def assert_lost(term: Term, reason: str = "") -> None:
    """Assert that ``term`` is lost; ``reason`` is a part of the reason."""
    if not term.lost:
        state = "still held" if term.valid else "not held, and was not lost"
        raise AssertionError(f"{term.resource} is {state}.")
    try:
        term.ensure()
    except LeaseLost as loss:
        if reason not in loss.reason:
            raise AssertionError(f"{loss} The reason does not contain {reason!r}.") from None


def events_of(what: What) -> list[LeaseEvent]:
    """Return the ledger's events of ``what``, oldest first; see ``event.kind``."""
    _write_notes()
    return subject_of(what).events()


aassert_free = sync_to_async(assert_free)
aassert_held = sync_to_async(assert_held)
aevents_of = sync_to_async(events_of)
aexpire = sync_to_async(expire)
arevoke = sync_to_async(revoke)


# Where it happens


@contextmanager
def in_memory() -> Iterator[MemoryStore]:
    """In this block, keep leases in the memory of this process, without a database or another
    store, as with ``LEASING["ENABLED"] = False``. They are forgotten at its end."""
    with override_settings(LEASING={**leasing_settings.given(), "ENABLED": False}):
        try:
            yield memory
        finally:
            clear_all()


class LeasingTestMixin:
    """For test cases of unittest: the clocks of leases stop until the test advances them.

    Name it before the ``TestCase``: ``class MyTest(LeasingTestMixin, TestCase)``.
    """

    #: Moves time, and renews: see ManualKeeper.
    lease_keeper: ManualKeeper

    def run(self, result: TestResult | None = None) -> TestResult | None:
        # Around setUp and tearDown, whether or not they call super().
        with manual_keeper() as self.lease_keeper:
            outcome: TestResult | None = super().run(result)  # type: ignore[misc]
            return outcome


class LeasingTestCase(LeasingTestMixin, TestCase):
    """A ``django.test.TestCase`` in which the clocks of leases are stopped."""


def _write_notes() -> None:
    if isinstance(clocks.stand_in, ManualKeeper):
        clocks.stand_in.write_notes()
