"""The verbs of holders on any database, which define what they do: ``rows`` is a queryset of the
rows, whose conditions and columns they take.

No statement that judges a row can wait for its lock, or it would judge by a time that is over: the
row is locked first, and updated second.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q

from leasing.db.dialects import atomic, durable, limit_waiting, lock
from leasing.functions import DbNow
from leasing.runtime.clock import clock


def renew(rows: Any, row: Any) -> bool:
    """Renew the grant of ``row``, and update the instance. Return True if it was renewed."""
    with durable(rows.db):
        rows._lock(row)
        return _write(rows, row, rows.renewal())


def release(rows: Any, row: Any) -> bool:
    """Release the grant of ``row``, and update the instance. Return True if it was released."""
    with atomic(rows.db):
        rows._lock(row)
        released = _write(rows, row, releasing())
        if released:
            rows.record("released", row)
        return released


def _write(rows: Any, row: Any, columns: Mapping[str, Any]) -> bool:
    written = rows._of_grant(row).unexpired().update(**columns)
    if written:
        # While the row is locked: later it could show, and so hand over, a grant that somebody
        # else has won.
        row.refresh_from_db(fields=rows.model.verb_columns, from_queryset=rows._everything())
    return bool(written)


def releasing() -> dict[str, Any]:
    """The columns of a release."""
    return {"released_at": DbNow(), "expires_at": DbNow()}


def renew_many(rows: Any, grants: Mapping[Any, uuid.UUID], timeout: float) -> list[Any]:
    """Renew those of ``rows`` whose key and grant are in ``grants`` and that nobody else has
    locked; return these, with ``now``. No statement runs longer than ``timeout`` seconds."""
    mine = Q(pk__in=list(grants), grant_id__in=list(grants.values()))
    with durable(rows.db):
        limit_waiting(rows.db, timeout)
        found = lock(rows._everything().filter(mine).order_by("pk"), skip_locked=True)
        locked = list(found.values_list("pk", flat=True))
        living = rows._everything().filter(mine, pk__in=locked).holding().unexpired()
        if not living.update(**rows.renewal()):
            return []
        alive = rows._everything().filter(pk__in=locked, expires_at__gt=DbNow()).holding()
        dated = alive.only("pk", *rows.model.renewal_columns).annotate(now=DbNow())
        return list(dated)


def grant(rows: Any, terms: Any, limit: int | None, **key: Any) -> list[Any]:
    """Grant up to ``limit`` available of ``rows`` with ``key``, in their order, within the
    caller's transaction. Return them, with ``previous_expired_at`` where a term had expired."""
    sent_at = clock()
    free = rows.available().filter(**key)
    if terms.request_id is not None:
        # Its grant has ended, and is not made twice.
        free = free.exclude(grant_id__range=terms.grants_of_request)
    before = rows._chosen(free, limit)
    if not before:
        return []
    grants = {pk: terms.new_grant() for pk in before}
    rows._write_grants(before, grants, rows.granting(terms))
    won = rows._everything().filter(pk__in=list(before), grant_id__in=list(grants.values()))
    dated: Iterable[Any] = won.annotate(now=DbNow())
    written: dict[Any, Any] = {row.pk: row for row in dated}
    granted = []
    for old in before.values():
        row = written.get(old.pk)
        if row is not None:
            row.sent_at = sent_at
            kind = "taken_over" if old.grants and old.released_at is None else "acquired"
            row.previous_expired_at = old.expires_at if kind == "taken_over" else None
            known = {"previous_holder": old.holder, "previous_expired_at": row.previous_expired_at}
            rows.record(kind, row, **known)
            granted.append(row)
    return granted
