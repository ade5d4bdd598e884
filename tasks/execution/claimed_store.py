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
from tasks.querysets.claimed import Taken, Term, resource_of


class TakenStore(RowStore):
    """Keeps grants whose ``row`` is a ``Taken``."""

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
def store_in(using: str) -> TakenStore:
    """The store of the tasks in the database ``using``."""
    return TakenStore(Task, using)


def load(claimed: Sequence[Taken]) -> None:
    """Read the rows of ``claimed``, by one query: for handlers that must not wait for the
    database where they look at their task."""
    bare = {taken.id: taken for taken in claimed if not taken.is_loaded}
    if not bare:
        return
    using = next(iter(bare.values())).using
    for row in Task.objects.using(using).filter(pk__in=bare):
        taken = bare[row.pk]
        if row.grant_id == taken.grant_id:
            taken.load(row)


def grants_of(claimed: Sequence[Taken]) -> list[Grant]:
    """The grants of claimed tasks."""
    grants: list[Grant] = []
    term: Term | None = None
    ttl = remaining = 0.0
    for taken in claimed:
        if taken.term is not term:  # which is the same for all of one claim
            term = taken.term
            ttl = term.ttl.total_seconds()
            remaining = (term.expires_at - term.now).total_seconds()
        grants.append(
            Grant(
                taken.id,
                taken.grant_id,
                taken.fencing_token,
                term.holder,
                resource_of(taken.id),
                ttl,
                remaining,
                term.sent_at,
                term.expires_at,
                taken,
            )
        )
    return grants
