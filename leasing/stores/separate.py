"""Leases that are taken inside a transaction of the caller's, yet not in it: ``separate=True``.

The grant is written over a connection of its own and stays, so no rollback lets its token be
granted again. It is given back once the caller's transaction has committed, so that the next
holder reads what was written; when that rolls back, the lease runs out.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connections

from leasing.db.dialects import after_commit, in_transaction
from leasing.db.side_connection import SideConnection, moved
from leasing.exceptions import LeaseInTransaction, LeaseLost
from leasing.runtime.aio import Steps
from leasing.runtime.event_lines import log
from leasing.store import Grant, Renewals
from leasing.stores.rows import RowStore


@dataclass(frozen=True)
class SeparateRowStore(RowStore):
    """Keeps grants of holds inside of which the caller's transaction may end, or around which."""

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        if not in_transaction(self.using):
            return super().renew(grants, timeout)
        with SideConnection(self.using) as side_connection:
            return side_connection.run(partial(super().renew, grants, timeout))

    def release(self, grant: Grant) -> None:
        if in_transaction(self.using):
            after_commit(self.using, partial(self._release_at_last, grant))
        else:
            super().release(grant)

    def _release_at_last(self, grant: Grant) -> None:
        try:
            super().release(grant)
        except LeaseLost as loss:
            # Too late to roll back. What was written may have met what the next holder wrote.
            log.lease_outlived(resource=loss.resource, error=loss)


def taking_separately(using: str, steps: Steps[Any]) -> Steps[Any]:
    """``steps``, outside of the transaction in which their caller may be."""
    if not (yield partial(in_transaction, using)):
        return (yield from steps)
    if connections[using].vendor == "sqlite":
        raise LeaseInTransaction(
            "SQLite has one writer at a time: during a transaction no lease can be acquired, even "
            "over a separate connection. Acquire the lease before the transaction."
        )
    return (yield from moved(SideConnection(using), steps))
