"""Delete old rows: each after a minimum age.

    lease      since its term and its grace ended
    once key   since its window and its lease ended
    event      since the end of its term: see ``leasing.models.event``
    audit      entries older than LEASING["AUDIT_RETENTION"]; a given age does not apply

If a deleted name is leased again, its new row's tokens begin at the database's clock. So a row is
deleted only if its token is behind that clock by the same age: tokens keep rising.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import Q

from leasing.conf import leasing_settings
from leasing.db.deletion import delete_all
from leasing.functions import DbMicroseconds, after, database_now
from leasing.models import AuditEntry, Lease, LeaseEvent, OnceKey


@dataclass(frozen=True)
class Pruned:
    """The numbers of deleted rows."""

    leases: int
    events: int
    once_keys: int


def prune(age: timedelta, batch: int = 500) -> Pruned:
    """Delete what ended ``age`` ago or earlier, ``batch`` rows per transaction. Rows that somebody
    has locked are left for the next time, so any number may prune at once."""
    leases = _delete(prunable_leases(age), batch)
    once_keys = _delete(prunable_once_keys(age), batch)
    using = Lease.objects.home().db
    events = LeaseEvent.objects.using(using).prune(database_now(using) - age, batch)
    return Pruned(leases, events, once_keys)


def prune_audit(batch: int = 500) -> int:
    """Delete audit entries that are older than AUDIT_RETENTION. Returns how many."""
    age = leasing_settings.AUDIT_RETENTION
    return 0 if age is None else AuditEntry.objects.prune(timedelta(seconds=age), batch)


def prunable_leases(age: timedelta) -> models.QuerySet[Lease]:
    """Named leases that nobody has held for ``age``."""
    then = after(-age)
    return (
        Lease.objects.home()
        .available()
        .filter(
            Q(grants__gt=0) | Q(created_at__lte=then),
            expires_at__lte=then,
            fencing_token__lte=_token_then(age),
        )
    )


def prunable_once_keys(age: timedelta) -> models.QuerySet[OnceKey]:
    """Results of ``once`` whose window and lease ended ``age`` ago or earlier."""
    then = after(-age)
    return OnceKey.objects.home().filter(
        window_ends_at__lte=then, expires_at__lte=then, fencing_token__lte=_token_then(age)
    )


def _token_then(age: timedelta) -> Any:
    """Return the token with which a new row would have begun ``age`` ago."""
    return DbMicroseconds() - age // timedelta(microseconds=1)


def _delete(rows: models.QuerySet[Any], batch: int) -> int:
    def delete(keys: list[Any]) -> int:
        # Judged again: where there are no row locks, it may have been taken meanwhile.
        _, counts = rows.filter(pk__in=keys).delete()
        return counts.get(rows.model._meta.label, 0)

    return delete_all(rows, batch, delete)
