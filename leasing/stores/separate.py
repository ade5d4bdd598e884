"""Leases that are taken inside a transaction of the caller's, yet not in it: ``separate=True``.

The grant is written over a connection of its own and stays, so no rollback lets its token be
granted again. It is given back once the caller's transaction has committed, so that the next
holder reads what was written; when that rolls back, the lease runs out.

In a test whose work is rolled back nothing ever commits, and another connection would leave its
rows behind. There the grant is written over the test's connection, on SQLite too, and given back
at the end of its block.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db import connections

from leasing.db.dialects import (
    after_commit,
    as_if_of_test,
    in_transaction,
    is_rolled_back_by_test,
)
from leasing.db.side_connection import SideConnection, moved
from leasing.exceptions import LeaseInTransaction, LeaseLost
from leasing.holding.term import Term
from leasing.runtime.aio import Steps
from leasing.runtime.event_lines import log
from leasing.store import Renewals
from leasing.stores.rows import RowStore

Result = TypeVar("Result")


@dataclass(frozen=True)
class SeparateRowStore(RowStore):
    """Keeps grants of holds inside of which the caller's transaction may end, or around which."""

    def acquiring(self, *asked: Any) -> Steps[Any]:
        return _taking_separately(self.using, super().acquiring(*asked))

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        if not in_transaction(self.using):
            return super().renew(grants, timeout)
        with _connection(self.using) as side_connection:
            return side_connection.run(partial(super().renew, grants, timeout))

    def release(self, term: Term) -> None:
        if is_rolled_back_by_test(self.using):
            with as_if_of_test(self.using):
                super().release(term)
        elif in_transaction(self.using):
            after_commit(self.using, partial(self._release_at_last, term))
        else:
            super().release(term)

    def _release_at_last(self, term: Term) -> None:
        try:
            super().release(term)
        except LeaseLost as loss:
            # Too late to roll back. What was written may have met what the next holder wrote.
            log.lease_outlived(resource=loss.resource, error=loss)


class OfTest(SideConnection):
    """The connection of a test whose work is rolled back, in place of a private one."""

    def run(self, call: Callable[[], Result]) -> Result:
        with as_if_of_test(self.using):
            return call()


def _connection(using: str) -> SideConnection:
    return OfTest(using) if is_rolled_back_by_test(using) else SideConnection(using)


def _taking_separately(using: str, steps: Steps[Any]) -> Steps[Any]:
    """``steps``, outside of the transaction in which their caller may be."""
    if not (yield partial(in_transaction, using)):
        return (yield from steps)
    if connections[using].vendor == "sqlite" and not is_rolled_back_by_test(using):
        raise LeaseInTransaction(
            "SQLite has one writer at a time: during a transaction no lease can be acquired, even "
            "over a separate connection. Take the lease first, then begin the transaction. A view "
            "under ATOMIC_REQUESTS needs @transaction.non_atomic_requests."
        )
    return (yield from moved(_connection(using), steps))
