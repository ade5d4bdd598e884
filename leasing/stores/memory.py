"""Leases in the memory of this process: for ``LEASING["ENABLED"] = False``, or as a store that
LEASING["STORES"] names.

What a hold asks of the database is kept in a dictionary instead, by the same rules: grants are
exclusive, tokens rise, deadlines pass. No other process hears of it, so this is for tests, and
for machines on which one process runs. All that gives a ``Hold`` comes here: ``hold()`` of named
leases and of rows, ``@leased``, ``Leader``. What gives or takes rows (``acquire``, ``claim``,
``renew``, ``once``, the querysets) is about rows, and stays with the database.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self
from weakref import WeakSet

from django.apps import apps
from django.db import transaction

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.holding.term import Term
from leasing.runtime import clock as clocks
from leasing.runtime.events import happened
from leasing.store import Incumbent, Renewals
from leasing.stores.base import TERMS, BaseStore
from leasing.stores.rows import term_of
from leasing.validation.terms import Terms

#: The name under which waiters of these leases wait, in place of a database.
MEMORY = "(the memory of this process)"
#: Events that are remembered; of more, the oldest are dropped.
MAX_EVENTS = 1000
#: Rows that are kept before those that are over make room.
ROOM = 1000
MICROSECOND = timedelta(microseconds=1)

#: The label of the model of leases on names.
NAMED = "leasing.Lease"
#: The model's label and the name of the resource.
Key = tuple[str, str]


class MemoryStore(BaseStore):
    """Keeps grants as unsaved rows in a dictionary. ``memory`` is the one of ENABLED.

    ``clock`` gives seconds, and never goes back.
    """

    known_terms = frozenset(TERMS)
    may_be_separate = True

    def __init__(self, clock: Callable[[], float] = clocks.clock) -> None:
        self.clock = clock
        self._token = 0
        self.clear()
        _all.add(self)

    @classmethod
    def from_settings(cls) -> Self:
        """Return a store of its own, for an entry of STORES. It has no options."""
        return cls()

    def __repr__(self) -> str:
        return MEMORY if self is memory else f"{MEMORY[:-1]}, store {id(self):x})"

    def clear(self) -> None:
        """Forget everything: what is held is lost. Tokens go on rising."""
        self._lock = threading.RLock()
        self._rows: dict[Key, Any] = {}
        self._room = ROOM
        self._began: tuple[datetime, float] | None = None
        #: Events, unsaved, oldest first.
        self.events: deque[Any] = deque(maxlen=MAX_EVENTS)

    def now(self) -> datetime:
        """The time by which these leases are judged."""
        if self._began is None:
            self._began = datetime.now(UTC), self.clock()
        began, started = self._began
        return began + timedelta(seconds=self.clock() - started)

    # Taking

    def acquire_row(self, row: Any, terms: Terms) -> Term:
        """Grant ``row``, a new instance that names the resource. Raises LeaseHeld."""
        return self.granted(partial(self._grant_row, row, terms))

    def grant(self, resource: str, terms: Terms) -> Term:
        return self._grant_row(apps.get_model("leasing", "Lease")(resource=resource), terms)

    def _grant_row(self, row: Any, terms: Terms) -> Term:
        key, row.sent_at = key_of(row), self.clock()
        with self._lock:
            old = self._rows.get(key)
            if old is not None:
                self._refuse_if_held(old, terms)
            self._make_room()
            self._rows[key] = self._granted(row, old, terms)
            kind = "acquired" if old is None or old.released_at else "taken_over"
            before = {} if old is None else {"previous_holder": old.holder}
            if old is not None and kind == "taken_over":
                before["previous_expired_at"] = row.previous_expired_at = old.expires_at
            self._record(row, kind, **before)
            term = term_of(row, self)
            term.key = key
            return term

    def _refuse_if_held(self, held: Any, terms: Terms) -> None:
        if held.released_at is not None:
            return
        now = self.now()
        graced_until = held.expires_at + _own(held, "grace", timedelta(0))
        if held.expires_at > now:
            if terms.preempt_after is not None:
                self._preempt(held, terms, now)
            raise LeaseHeld(held.lease_resource, held.holder, held.expires_at)
        if graced_until > now:
            raise LeaseHeld(held.lease_resource, held.holder, graced_until)

    def _preempt(self, held: Any, terms: Terms, now: datetime) -> None:
        assert terms.preempt_after is not None
        ends_at = _own(held, "ends_at", None)
        end = max(held.expires_at, now + terms.preempt_after)
        if _own(held, "priority", 0) < terms.priority and (ends_at is None or ends_at > end):
            held.ends_at, held.yield_to = end, terms.holder
            reason = f"asked to yield to {terms.holder}"
            self._record(held, "preempted", actor=terms.holder, reason=reason)
            happened("lease.preempted", [held], by=terms.holder)

    def _granted(self, row: Any, old: Any, terms: Terms) -> Any:
        now = self.now()
        columns = {
            "holder": terms.holder,
            "grant_id": uuid.uuid4(),
            "fencing_token": self._next_token(),
            "grants": 1 if old is None else old.grants + 1,
            "ttl": terms.ttl,
            "acquired_at": now,
            "expires_at": now + terms.ttl,
            "priority": terms.priority,
            "grace": terms.grace,
            "ends_at": None if terms.max_hold is None else now + terms.max_hold,
            "metadata": terms.metadata,
        }
        for name, value in columns.items():
            if name in row.verb_columns:
                setattr(row, name, value)
        row.now = now
        return row

    def _next_token(self) -> int:
        # Not below the clock, so that they go on rising in the next process.
        micros = (self.now() - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND
        self._token = max(self._token + 1, micros)
        return self._token

    def _make_room(self) -> None:
        """Forget the rows that are over, once there are many."""
        if len(self._rows) < self._room:
            return
        now = self.now()
        for key, row in list(self._rows.items()):
            over = row.expires_at + _own(row, "grace", timedelta(0)) <= now
            if over or row.released_at is not None:
                del self._rows[key]
        self._room = max(ROOM, 2 * len(self._rows))

    # What holds and the keeper ask of a store

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        answer = Renewals()
        with self._lock:
            for key, grant_id in grants.items():
                row = self.look(key)
                if reason := _why_over(row, grant_id):
                    answer.lost[key] = reason
                    continue
                moved = max(row.expires_at, row.now + row.ttl)
                row.expires_at = min(moved, _own(row, "ends_at", None) or moved)
                row.renewed_at = row.now
                row.renewals += 1
                answer.renewed[key] = row.renewal_now()
        return answer

    def give_back(self, term: Term) -> bool:
        with self._lock:
            row = self.look(term.key)
            reason = _why_over(row, term.grant_id, term.fencing_token)
            if reason is None:
                row.released_at = row.expires_at = row.now
                self._record(row, "released")
                return True
        if _was_released_by_holder(row, term):
            return False
        raise LeaseLost(term.resource, reason)

    def lost(self, term: Term, reason: str) -> None:
        self._record(term.held_row, "lost", reason=reason)
        super().lost(term, reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Arguments are those of ``Store.refused``."""
        self._record(row, "refused", reason=f"{verb}: {reason}")
        super().refused(row, verb, reason)

    @contextmanager
    def proving(self, row: Any) -> Iterator[None]:
        with transaction.atomic(using=leasing_settings.DATABASE):
            self._prove(row)
            yield
            self._prove(row)

    def _prove(self, row: Any) -> None:
        with self._lock:
            reason = _why_over(self.look(key_of(row)), row.grant_id)
        if reason:
            self.refused(row, "commit", reason)
            raise LeaseLost(row.lease_resource, reason)

    # What operators and tests do

    def look(self, key: Key) -> Any:
        """The row as it stands, with ``now``; None when nobody had it."""
        row = self._rows.get(key)
        if row is not None:
            row.now = self.now()
        return row

    def current(self, resource: str) -> Incumbent | None:
        with self._lock:
            row = self.look((NAMED, resource))
            if row is None or row.released_at is not None or row.expires_at <= row.now:
                return None
            return Incumbent(row.holder, row.fencing_token, row.expires_at)

    def held(self) -> dict[str, Incumbent]:
        """Return who holds what, by name."""
        with self._lock:
            found = [(name, self.current(name)) for kind, name in self._rows if kind == NAMED]
        return {name: each for name, each in found if each}

    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        row = self._take_back((NAMED, resource), reason, by)
        return None if row is None else Incumbent(row.holder, row.fencing_token, row.expires_at)

    def revoke_row(self, key: Key, reason: str = "", by: str = "") -> bool:
        """Take a row of any model from its holder and raise its token. Return True if there was a
        holder.

        Args:
            key: The key of the row in this store.
            reason: Why, for the event and the signal.
            by: The operator, for the same.
        """
        row = self._take_back(key, reason, by)
        if row is None:
            return False
        happened("lease.revoked", [row], reason=reason, by=by)
        self.notify(row.lease_resource)
        return True

    def _take_back(self, key: Key, reason: str, by: str) -> Any:
        with self._lock:
            row = self.look(key)
            if row is None or row.released_at is not None:
                return None
            row.released_at, row.expires_at = row.now, min(row.expires_at, row.now)
            row.fencing_token = self._next_token()
            self._record(row, "revoked", reason=reason, actor=by)
            return row

    def change(self, key: Key, columns: dict[str, Any]) -> None:
        """Write ``columns`` to the row, without a condition."""
        with self._lock:
            for name, value in columns.items():
                setattr(self._rows[key], name, value)

    def _record(self, row: Any, kind: str, **fields: Any) -> None:
        event = apps.get_model("leasing", "LeaseEvent")
        self.events.append(event.of(row, kind, at=self.now(), **fields))


def key_of(row: Any) -> Key:
    """Return the key under which a store keeps ``row``."""
    return row.leased_model()._meta.label, row.lease_resource


def _own(row: Any, column: str, default: Any) -> Any:
    """A column that only some models have; others may use the name for something else."""
    return getattr(row, column) if column in row.verb_columns else default


def _why_over(row: Any, grant_id: uuid.UUID | None, fencing_token: int | None = None) -> str | None:
    if row is None:
        return "its row is gone"
    reason: str | None = row.lease_rows().why_over(row, grant_id, fencing_token)
    return reason


def _was_released_by_holder(row: Any, term: Term) -> bool:
    if row is None or row.released_at is None:
        return False
    return bool((row.grant_id, row.fencing_token) == (term.grant_id, term.fencing_token))


#: Every store in memory of this process.
_all: WeakSet[MemoryStore] = WeakSet()

memory = MemoryStore()


def clear_all() -> None:
    """Forget everything that is held in memory, in any store."""
    for store in list(_all):
        store.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clear_all)
