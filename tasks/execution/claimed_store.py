"""The store of the holds on claimed tasks, whose rows are made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from leasing.store import Grant
from leasing.stores.rows import RowStore
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask, resource_of


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


def grant_of(claimed: ClaimedTask) -> Grant:
    """The grant of a claimed task."""
    term = claimed.term
    return Grant(
        claimed.id,
        claimed.grant_id,
        claimed.fencing_token,
        term.holder,
        resource_of(claimed.id),
        term.seconds,
        term.granted_until - term.sent_at,
        term.expires_at,
        term.sent_at,
        claimed,
    )
