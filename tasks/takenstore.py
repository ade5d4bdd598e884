"""The store of the holds on claimed tasks, whose rows are made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Any

from leasing.rowstore import RowStore
from leasing.store import Grant
from tasks.models import Task
from tasks.taken import Taken, resource_of


class TakenStore(RowStore):
    """Keeps grants whose ``row`` is a ``Taken``."""

    __slots__ = ()

    def release(self, grant: Grant) -> None:
        super().release(replace(grant, row=grant.row.task))

    def lost(self, grant: Grant, reason: str) -> None:
        super().lost(replace(grant, row=grant.row.task), reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        super().refused(row.task, verb, reason)

    def proving(self, row: Any) -> AbstractContextManager[None]:
        return super().proving(row.task)


@cache
def store_in(using: str) -> TakenStore:
    """The store of the tasks in the database ``using``."""
    return TakenStore(Task, using)


def grants_of(claimed: Sequence[Taken]) -> list[Grant]:
    """The grants of tasks that were claimed by one request."""
    if not claimed:
        return []
    first = claimed[0]
    ttl = first.ttl.total_seconds()
    remaining = (first.expires_at - first.now).total_seconds()
    return [
        Grant(
            key=taken.id,
            grant_id=taken.grant_id,
            fencing_token=taken.fencing_token,
            holder=first.holder,
            resource=resource_of(taken.id),
            ttl=ttl,
            remaining=remaining,
            sent_at=first.sent_at,
            expires_at=first.expires_at,
            row=taken,
        )
        for taken in claimed
    ]
