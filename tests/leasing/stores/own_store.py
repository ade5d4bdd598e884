"""A store as a user of this package would write one, in a dictionary in place of a server."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.holding.term import Term
from leasing.runtime.clock import clock
from leasing.store import Incumbent, Reason, Renewal, Renewals, Why
from leasing.stores.base import BaseStore
from leasing.validation.terms import Terms

BEGAN = datetime(2030, 1, 1, tzinfo=UTC), clock()


@dataclass
class Entry:
    """The latest grant of a name."""

    holder: str
    grant_id: uuid.UUID
    token: int
    ttl: float
    ends_at: float
    is_given_back: bool = False


class DictStore(BaseStore):
    """Keeps leases in a dictionary."""

    def __init__(self, *, shelf: str, seconds_ahead: float = 0.0) -> None:
        if not shelf:
            raise ValueError("the SHELF has no name")
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._tokens = itertools.count(1)
        self._ahead = seconds_ahead
        self.requests = 0
        self.shelf = shelf

    def __repr__(self) -> str:
        return f"the shelf {self.shelf}"

    @property
    def now(self) -> float:
        return clock() + self._ahead

    def grant(self, resource: str, terms: Terms) -> Term:
        with self._lock:
            entry = self._entries.get(resource)
            if entry is not None and entry.ends_at > self.now:
                raise LeaseHeld(resource, entry.holder, self.moment(entry))
            ttl = terms.ttl.total_seconds()
            entry = Entry(terms.holder, uuid.uuid4(), self.next_token(), ttl, self.now + ttl)
            self._entries[resource] = entry
            return Term(
                key=resource,
                grant_id=entry.grant_id,
                fencing_token=entry.token,
                holder=entry.holder,
                resource=resource,
                ttl=ttl,
                remaining=ttl,
                expires_at=self.moment(entry),
            )

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        answer = Renewals()
        with self._lock:
            self.requests += 1
            for resource, grant_id in grants.items():
                entry = self._entries[resource]
                if reason := self.why_over(entry, grant_id):
                    answer.lost[resource] = reason
                else:
                    entry.ends_at = max(entry.ends_at, self.now + entry.ttl)
                    remaining = entry.ends_at - self.now
                    answer.renewed[resource] = Renewal(self.moment(entry), remaining)
        return answer

    def give_back(self, grant: Term) -> bool:
        with self._lock:
            entry = self._entries[grant.key]
            if entry.is_given_back and entry.grant_id == grant.grant_id:
                return False
            if reason := self.why_over(entry, grant.grant_id):
                raise LeaseLost(grant.resource, reason)
            entry.ends_at, entry.is_given_back = self.now, True
            return True

    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        with self._lock:
            entry = self._entries.get(resource)
            if entry is None or entry.ends_at <= self.now:
                return None
            entry.token, entry.ends_at = self.next_token(), self.now
            entry.grant_id = uuid.uuid4()
            return Incumbent(entry.holder, entry.token, self.moment(entry))

    def current(self, resource: str) -> Incumbent | None:
        with self._lock:
            entry = self._entries.get(resource)
            if entry is None or entry.ends_at <= self.now:
                return None
            return Incumbent(entry.holder, entry.token, self.moment(entry))

    def why_over(self, entry: Entry, grant_id: uuid.UUID) -> str:
        if entry.grant_id != grant_id:
            return Reason(Why.TAKEN, "somebody else has it")
        return "" if entry.ends_at > self.now else Reason(Why.EXPIRED, "it expired")

    def next_token(self) -> int:
        return next(self._tokens)

    def moment(self, entry: Entry) -> datetime:
        began, started = BEGAN
        return began + timedelta(seconds=entry.ends_at - self._ahead - started)
