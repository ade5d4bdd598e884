"""The store of the holds on claimed tasks, whose rows are made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from leasing.store import Grant
from leasing.stores.rows import RowStore
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask, ClaimTerm, resource_of


class ClaimedStore(RowStore):
    """Keeps grants whose ``row`` is a ``ClaimedTask``."""

    __slots__ = ()

    def release(self, grant: Grant) -> None:
        super().release(replace(grant, row=grant.row.task))

    def lost(self, grant: Grant, reason: str) -> None:
        super().lost(replace(grant, row=grant.row.task), reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        super().refused(row.task, verb, reason)

    @contextmanager
    def proving(self, row: Any) -> Iterator[None]:
        with super().proving(row.task):
            yield


@cache
def store_in(using: str) -> ClaimedStore:
    """The store of the tasks in the database ``using``."""
    return ClaimedStore(Task, using)


def load(claimed: Sequence[ClaimedTask]) -> None:
    """Read the rows of ``claimed``, by one query: for handlers that must not wait for the
    database where they look at their task."""
    bare = {claimed_task.id: claimed_task for claimed_task in claimed if not claimed_task.is_loaded}
    if not bare:
        return
    using = next(iter(bare.values())).using
    for row in Task.objects.using(using).filter(pk__in=bare):
        claimed_task = bare[row.pk]
        if row.grant_id == claimed_task.grant_id:
            claimed_task.load(row)


def grants_of(claimed: Sequence[ClaimedTask]) -> list[Grant]:
    """The grants of claimed tasks."""
    grants: list[Grant] = []
    term: ClaimTerm | None = None
    ttl = remaining = 0.0
    for claimed_task in claimed:
        if claimed_task.term is not term:  # which is the same for all of one claim
            term = claimed_task.term
            ttl = term.ttl.total_seconds()
            remaining = (term.expires_at - term.now).total_seconds()
        grants.append(
            Grant(
                claimed_task.id,
                claimed_task.grant_id,
                claimed_task.fencing_token,
                term.holder,
                resource_of(claimed_task.id),
                ttl,
                remaining,
                term.sent_at,
                term.expires_at,
                claimed_task,
            )
        )
    return grants
