"""The verbs of holders: renew, release, and proof that a grant still holds.

They take the held row, require its grant, and raise LeaseLost if its term has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from django.db import connections
from django.db.models import Q

from leasing.db import sql
from leasing.db.dialects import (
    after_commit,
    atomic,
    durable,
    limit_waiting,
    lock,
    refuse_transaction,
)
from leasing.exceptions import LeaseLost
from leasing.functions import DbNow
from leasing.querysets.claim import ending, leaves_block
from leasing.querysets.saving import Row
from leasing.querysets.states import LeaseRows
from leasing.runtime.aio import in_thread
from leasing.runtime.events import during, happened
from leasing.store import Renewals


class HolderRows(LeaseRows[Row]):
    """Rows that can be leased, as their holders renew and release them."""

    #: The name of the verb that renews these rows.
    renewing = "renew"
    #: True to notify other processes of a release: of rows with ``wanted_until``.
    tells_waiters = False

    def renew(self, row: Row) -> Row:
        """Move the deadline of ``row`` to now plus its ttl, never to an earlier time.

        Raises LeaseLost if the grant is no longer the current one or the deadline has
        passed, LeaseInTransaction inside an atomic block.
        """
        rows = self.home(row)
        if not rows._renew(row):
            raise rows._refuse(row, rows.renewing)
        happened("lease.renewed", [row])
        return row

    def release(self, row: Row) -> Row:
        """Release ``row``. A second release of the same grant changes nothing.

        Raises LeaseLost if the grant is no longer the current one or had expired.
        """
        with during("lease.release", row):
            self.home(row)._release_held(row)
        return row

    @leaves_block
    def _release_held(self, row: Row) -> None:
        if self._release_in_one([row]):
            return
        if self._release(row):
            after_commit(self.db, partial(happened, "lease.released", [row]))
        elif not self._was_released_by_holder(row):
            raise self._refuse(row, "release")

    def release_many(self, held: Iterable[Row]) -> dict[Any, LeaseLost]:
        """``release`` each of ``held``, on PostgreSQL in one statement. Returns the losses by key;
        all other rows are released."""
        key = attrgetter(self.model._meta.pk.attname)
        held = list(held)
        rows = self.home(held[0] if held else None)
        left = {key(row): row for row in held}
        if type(rows).release is HolderRows.release:
            with ending(rows.db, left.values()) as standing:
                for row in rows._release_in_one(list(left.values())):
                    del left[key(row)]
                standing += left.values()
        losses = {}
        for row in left.values():
            try:
                rows.release(row)
            except LeaseLost as loss:
                losses[row.pk] = loss
        return losses

    async def arenew(self, row: Row) -> Row:
        """``renew``, for async code."""
        return await in_thread(self.renew, row)

    async def arelease(self, row: Row) -> Row:
        """``release``, for async code. It releases even if it is cancelled while it waits."""
        return await in_thread(self.release, row)

    def _renew(self, row: Row) -> bool:
        # A locked row, or one whose term has ended, is left to the form that waits for the lock.
        if sql.can_renew(self) and sql.renew_one(self, row):
            return True
        with durable(self.db):
            self._lock(row)
            renewed = self._of_grant(row).unexpired().update(**self.renewal())
            if renewed:
                # While the row is locked: later it could show, and so hand over, a grant that
                # somebody else has won.
                row.refresh_from_db(
                    fields=self.model.verb_columns, from_queryset=self._everything()
                )
        return bool(renewed)

    def _release_in_one(self, held: list[Row]) -> list[Row]:
        """Release rows in one statement, and signal that. Returns the released ones. The terms of
        the others have ended, or they are locked: the form that waits for the lock finds out."""
        if not (held and sql.can_release(self)):
            return []
        connection = connections[self.db]
        freed = sql.release(connection, self, held, tell=self.tells_waiters)
        if freed:
            after_commit(connection, partial(self._tell_freed, freed))
        return freed

    def _tell_freed(self, freed: list[Row]) -> None:
        happened("lease.released", freed)

    def _release(self, row: Row) -> bool:
        with atomic(self.db):
            self._lock(row)
            released = self._of_grant(row).unexpired().update(**releasing())
            if released:
                row.refresh_from_db(
                    fields=self.model.verb_columns, from_queryset=self._everything()
                )
                self.record("released", row)
        return bool(released)

    def prove(self, row: Row) -> None:
        """Lock ``row`` until the caller's transaction ends, if its grant is still the current
        one and the deadline has not passed. Raises LeaseLost."""
        rows = self.home()
        rows._lock(row)
        if not rows._of_grant(row).unexpired().exists():
            raise rows._refuse(row, "commit")

    def renew_many(self, grants: Mapping[Any, uuid.UUID], timeout: float = 10.0) -> Renewals:
        """Renew the rows whose key and grant are in ``grants``, in one transaction.

        Rows that someone else has locked are skipped and are not in the answer: try them again. No
        statement runs longer than ``timeout`` seconds.

        Raises LeaseInTransaction inside an atomic block: after a rollback the holders would trust a
        renewal that was not stored.
        """
        rows = self.home()
        refuse_transaction(rows.db)
        everything = rows._everything()
        renew = sql.renew if sql.can_renew(everything) else _renew
        renewed = renew(everything, grants, timeout)
        mine = [row for row in renewed if row.grant_id == grants[row.pk]]
        answer = Renewals({row.pk: row.renewal_now() for row in mine})
        missed = [key for key in grants if key not in answer.renewed]
        found = {row.pk: row for row in rows._lease_columns(missed)} if missed else {}
        for key in missed:
            reason = rows.why_over(found.get(key), grants[key])
            if reason:
                answer.lost[key] = reason
        return answer


def _renew(rows: HolderRows[Any], grants: Mapping[Any, uuid.UUID], timeout: float) -> list[Any]:
    """Renew those of ``rows``, which are all of a table, whose key and grant are in ``grants`` and
    that nobody else has locked; returns these rows, with ``now``. The portable form of
    ``sql.renew``."""
    mine = Q(pk__in=list(grants), grant_id__in=list(grants.values()))
    with durable(rows.db):
        limit_waiting(rows.db, timeout)
        found = lock(rows.filter(mine).order_by("pk"), skip_locked=True)
        locked = list(found.values_list("pk", flat=True))
        living = rows.filter(mine, pk__in=locked).holding().unexpired()
        if not living.update(**rows.renewal()):
            return []
        written = rows.filter(pk__in=locked, expires_at__gt=DbNow()).holding()
        dated = written.only("pk", *rows.model.renewal_columns).annotate(now=DbNow())
        return list(dated)


def releasing() -> dict[str, Any]:
    """The columns of a release."""
    return {"released_at": DbNow(), "expires_at": DbNow()}
