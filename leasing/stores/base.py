"""The part that stores have in common: holding, waiting, signals. Five verbs are a store's own.

    class RemoteStore(BaseStore):
        def __init__(self, *, url): ...                     # the options of its entry in STORES
        def grant(self, resource, terms): ...               # grant it now, or raise LeaseHeld
        def renew(self, grants, timeout): ...               # many grants at once
        def give_back(self, term): ...                      # end it, or raise LeaseLost
        def take_back(self, resource, reason, by): ...      # end anybody's, and raise the token
        def current(self, resource): ...                    # who holds it

What they promise
    one holder   between the answer to a grant and its end nobody else is granted the resource. A
                 grant ends when it is given back or taken back, or when ``remaining`` seconds have
                 passed since the answer to it, or to its latest renewal, on the store's clock
    tokens rise  the token of a grant is greater than any earlier one of the resource, whatever
                 became of that
    proof        renew and give_back act on the grant with that ``grant_id`` only. The name of the
                 holder proves nothing
    no revival   a grant that has ended is never renewed
    answers      an answer that did not arrive is no answer: raise StoreError

A store that keeps these needs no clock in common with its holders: each counts ``remaining`` from
before it sent the request.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Never, Unpack

from django.apps import apps
from django.db import connections

from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.db.dialects import refuse_transaction
from leasing.exceptions import LeaseLost, UnsupportedByStore
from leasing.holding.hold import Hold, TermCallback
from leasing.holding.term import Term
from leasing.runtime import clock as clocks
from leasing.runtime.aio import Steps, Undoable
from leasing.runtime.events import happened
from leasing.store import Incumbent, Renewals, TermOptions
from leasing.validation.names import check_name
from leasing.validation.terms import Terms
from leasing.waiting.notifier import notify, taking

#: The terms that a store need not have, with the values that ask for nothing.
TERMS: Mapping[str, Any] = {
    "priority": 0,
    "max_hold": None,
    "grace": None,
    "preempt_after": None,
    "metadata": None,
}


class BaseStore(ABC):
    """A ``leasing.store.NamedStore`` but for five verbs, which any thread may call."""

    #: Those of TERMS that its leases have.
    known_terms: ClassVar[frozenset[str]] = frozenset()
    #: True if a lease may be acquired inside a transaction by ``separate=True``.
    may_be_separate: ClassVar[bool] = False
    #: See ``leasing.store.Store``.
    is_metered: bool = False
    #: The holder's clock.
    clock: Callable[[], float] = staticmethod(clocks.clock)

    # The store's own

    @abstractmethod
    def grant(self, resource: str, terms: Terms) -> Term:
        """Grant ``resource`` now to ``terms.holder`` for ``terms.ttl``. Raises LeaseHeld."""

    @abstractmethod
    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        """Renew each key's grant: its deadline is one ttl from now, and never comes nearer. Give up
        after ``timeout`` seconds. A grant that has ended is ``lost``; one that could not be judged
        is left out."""

    @abstractmethod
    def give_back(self, term: Term) -> bool:
        """End ``term``. Return False if it was given back before. Raises LeaseLost if it has ended
        otherwise."""

    @abstractmethod
    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        """End the grant of ``resource``, whoever has it, and raise its token. Return its holder
        with the new token; None if there is none. Arguments are those of ``NamedStore.revoke``."""

    @abstractmethod
    def current(self, resource: str) -> Incumbent | None:
        """Return who holds ``resource`` now, by the store's clock; None if nobody does."""

    # What a store with connections replaces

    def open(self) -> None:
        """Called on the renewing thread before its first request."""
        return

    def close(self) -> None:
        """Called on the renewing thread when nothing is left to renew."""
        return

    def abort(self) -> None:
        """Called on another thread: make a request of the renewing thread that hangs fail."""
        return

    def disconnect(self) -> None:
        """Called when the settings have changed: close the connections."""
        return

    def acquiring(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        stopping: threading.Event | None,
        *,
        unless_in: str | None,
    ) -> Steps[Term]:
        """Return the steps that acquire ``resource`` for a hold, and wait for it: by polls, which
        a release in this process ends early.

        Args:
            resource: The name of the resource.
            terms: The terms of the grant.
            wait: Seconds to wait for the current holder; None: for ever.
            stopping: An event that ends the waiting with LeaseTimeout.
            unless_in: The alias of a database inside whose transactions it is refused; None: it
                never is.
        """
        take = partial(self.acquire, resource, terms)
        return self.taking(take, resource, wait, stopping, unless_in)

    # All others have the same

    def hold(
        self,
        resource: str,
        *,
        wait: Wait = DEFAULT,
        separate: bool = False,
        stopping: threading.Event | None = None,
        on_lost: TermCallback | None = None,
        on_yield: TermCallback | None = None,
        **terms: Unpack[TermOptions],
    ) -> Hold:
        """See ``leasing.store.NamedStore``."""
        check_name(resource, "resource")
        asked = Terms.check(**terms)
        if separate and not self.may_be_separate:
            raise UnsupportedByStore(
                f"separate=True is for leases in rows of the database, and {self} has none: "
                "acquire the lease before the transaction."
            )
        for name, nothing in TERMS.items():
            if terms.get(name, nothing) != nothing and name not in self.known_terms:
                raise UnsupportedByStore(f"{self} does not know the term {name!r}.")
        unless_in = None if separate else leasing_settings.DATABASE
        steps = partial(self.acquiring, resource, asked, wait, stopping, unless_in=unless_in)
        return Hold(self, steps, resource=resource, on_lost=on_lost, on_yield=on_yield)

    def taking(
        self,
        take: Callable[[], Term],
        resource: str,
        wait: Wait,
        stopping: threading.Event | None,
        unless_in: str | None,
    ) -> Steps[Term]:
        """Return the steps of ``acquiring``. The other arguments are those of that.

        Args:
            take: Grants the resource now, or raises LeaseHeld.
        """

        def attempt() -> Term:
            self.refuse_in(unless_in)
            return take()

        step = Undoable(attempt, self.release)
        return taking(self._waiters, resource, wait, step, stopping=stopping)

    def acquire(self, resource: str, terms: Terms) -> Term:
        """See ``leasing.store.NamedStore``."""
        check_name(resource, "resource")
        return self.granted(partial(self.grant, resource, terms))

    def granted(self, grant: Callable[[], Term]) -> Term:
        """Return what ``grant`` brings, trusted from before it was asked for, and signal it."""
        sent_at = self.clock()
        term = grant()
        term.sent_at = sent_at
        return self.announce_grant(term)

    def announce_grant(self, term: Term) -> Term:
        """Return ``term``, whose ``sent_at`` is set, once it is signalled."""
        term.store = self
        if term.row is None:
            term.row = _row(
                resource=term.resource,
                holder=term.holder,
                grant_id=term.grant_id,
                fencing_token=term.fencing_token,
                ttl=timedelta(seconds=term.ttl),
                expires_at=term.expires_at,
            )
        is_first = term.row.previous_expired_at is None
        happened("lease.acquired" if is_first else "lease.taken_over", [term.row])
        return term

    def refuse_in(self, using: str | None) -> None:
        """Raise LeaseInTransaction in a transaction of the database ``using``."""
        # No connection is opened to find out.
        if using is not None and connections[using].in_atomic_block:
            refuse_transaction(using)

    def release(self, term: Term) -> None:
        """Release ``term``, and wake a waiter of this process. Raises LeaseLost."""
        try:
            is_freed = self.give_back(term)
        except LeaseLost as loss:
            self.refused(term.held_row, "release", loss.reason)
            raise
        if is_freed:
            happened("lease.released", [term.held_row])
            self.notify(term.resource)

    def revoke(self, resource: str, reason: str = "", by: str = "") -> bool:
        """See ``leasing.store.NamedStore``."""
        ended = self.take_back(resource, reason, by)
        if ended is None:
            return False
        row = _row(resource=resource, **vars(ended))
        happened("lease.revoked", [row], reason=reason, by=by)
        self.notify(resource)
        return True

    def notify(self, resource: str) -> None:
        """Wake the caller of this process that has waited longest for ``resource``."""
        notify(self._waiters, resource)

    def lost(self, term: Term, reason: str) -> None:
        """Signal that the holder of ``term`` has learned of its loss."""
        happened("lease.lost", [term.held_row], reason=reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Signal that a target refused a late write. Arguments are those of ``Store.refused``."""
        happened("lease.refused", [row], verb=verb, reason=reason)

    def proving(self, row: Any) -> AbstractContextManager[None]:
        """Refuse: there is no transaction of this store that could prove a grant."""
        return self.refuse_transactional("still_mine()")

    def refuse_transactional(self, verb: str) -> Never:
        """Raise UnsupportedByStore: ``verb`` writes in the transaction that proves the lease."""
        raise UnsupportedByStore(
            f"{verb} needs the lease in the database that is written to, and {self} keeps it "
            "elsewhere. Pass the fencing token with each write instead."
        )

    @property
    def _waiters(self) -> str:
        """The name under which callers of this process wait, in place of a database."""
        return repr(self)


def _row(**columns: Any) -> Any:
    """Return a lease that no database has, as receivers of signals get it."""
    return apps.get_model("leasing", "Lease")(**columns)
