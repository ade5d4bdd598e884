"""Results kept by ``once``: the conditional updates of work that is done once a window.

acquire   ... and not finished, or its window is over
finish    this grant, not released
settle    granted, not finished; released, or the deadline has passed
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce

from leasing.conf import Wait
from leasing.db.sql import in_sql
from leasing.exceptions import LeaseHeld, PayloadMismatch
from leasing.functions import EPOCH, DbNow, after
from leasing.models.leasable import Leasable, Listing
from leasing.querysets import GRANTING, LEASE_FIELDS, LeasableQuerySet, LeaseState
from leasing.runtime.aio import Steps, in_thread
from leasing.stores.portable import releasing
from leasing.validation.terms import Terms
from leasing.validation.values import check_json


@dataclass(frozen=True, slots=True)
class OnceTerms(Terms):
    """Terms with the window, and the hash of what the work is to be done with."""

    window: timedelta = timedelta(0)
    payload_hash: str = ""


class OnceQuerySet(LeasableQuerySet["OnceKey"]):
    """Keys of work that is done once a window."""

    keeps_events = False

    @in_sql(
        "(t.released_at IS NOT NULL OR t.expires_at <= {now})"
        " AND (t.finished_at IS NULL OR t.window_ends_at <= {now})"
    )
    def available(self) -> Self:
        again = Q(finished_at=None) | Q(window_ends_at__lte=DbNow())
        return super().available().filter(again)

    @in_sql(
        GRANTING
        | {
            "payload_hash": "%(payload_hash)s",
            "result": "NULL",
            "finished_at": "NULL",
            "window_ends_at": "{now} + %(window)s::interval",
            "attempts": "CASE WHEN t.window_ends_at <= {now} THEN 1 ELSE t.attempts + 1 END",
            "settled_by": "''",
        }
    )
    def granting(self, terms: Terms) -> dict[str, Any]:
        assert isinstance(terms, OnceTerms)
        return super().granting(terms) | {
            "payload_hash": terms.payload_hash,
            "result": None,
            "finished_at": None,
            "window_ends_at": after(terms.window),
            "attempts": Case(
                When(window_ends_at__lte=DbNow(), then=Value(1)), default=F("attempts") + 1
            ),
            "settled_by": "",
        }

    def finish(self, row: OnceKey, result: Any) -> None:
        """Keep ``result`` until the window ends, and end the grant. Raises LeaseLost."""
        rows = self.home(row)
        # No lock before: an update that waited judges the grant again, and one that has
        # expired may still finish.
        finished = rows._of_grant(row).update(result=result, finished_at=DbNow(), **releasing())
        if not finished:
            raise rows._refuse(row, "finish")

    def settle(self, result: Any, by: str = "an operator") -> int:
        """Give these keys a result in place of work that was begun and that nobody is at: a call
        returns it for one more window, from now, and does not do the work. Returns how many were
        settled: not those that are held, were never granted, or have a result.

        Args:
            result: The result, which is JSON.
            by: The operator.

        Raises ValueError if the result is not JSON.
        """
        check_json(result, "result")
        # No lock before, as in finish: an update that waited judges the row as it is then.
        open_ = self.home().available().filter(grants__gt=0, finished_at=None)
        return open_.update(
            result=result,
            finished_at=DbNow(),
            released_at=Coalesce("released_at", DbNow()),
            window_ends_at=after(F("window_ends_at") - F("acquired_at")),
            settled_by=by,
        )

    async def asettle(self, result: Any, by: str = "an operator") -> int:
        """``settle``, for async code."""
        return await in_thread(self.settle, result, by)

    def beginning(self, resource: str, terms: OnceTerms, wait: Wait, key: str) -> Steps[OnceKey]:
        """Return the steps that begin the work called ``key``, or give the row of work that is
        finished. The other arguments are those of ``acquiring``.

        They raise LeaseHeld while it is under way, PayloadMismatch for another payload.
        """
        same = Q(payload_hash=terms.payload_hash) | Q(window_ends_at__lte=DbNow())
        return self.filter(same).acquiring(resource, terms, wait, ("key", key))

    def judge(self, resource: str, terms: Terms, key: tuple[str, Any]) -> OnceKey | None:
        assert isinstance(terms, OnceTerms)
        current: OnceKey | None = self._standing(*key)
        if current is None:
            self._everything().bulk_create([self.model(**dict([key]))], ignore_conflicts=True)
            return None
        if current.window_ends_at > current.now:
            if current.payload_hash != terms.payload_hash:
                raise PayloadMismatch(current.key)
            if current.finished_at is not None:
                return current
        if current.lease_state(current.now) == LeaseState.ACTIVE:
            raise LeaseHeld(resource, current.holder, current.expires_at)
        return None


class OnceKey(Leasable):
    """A piece of work that is done once a window: see ``leasing.idempotency``."""

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(max_length=200, unique=True, editable=False)
    #: Of the arguments: the same key with others is refused.
    payload_hash = models.CharField(max_length=64, blank=True, default="", editable=False)
    result = models.JSONField(null=True, default=None, editable=False)
    finished_at = models.DateTimeField(null=True, default=None, editable=False)
    #: The end of the window, after which the work may be done again.
    window_ends_at = models.DateTimeField(default=EPOCH, editable=False)
    #: How often the work was begun in this window: ``grants`` counts those of all windows.
    attempts = models.IntegerField(default=0, editable=False)
    #: The operator who gave the result; empty if the work did.
    settled_by = models.CharField(max_length=200, blank=True, default="", editable=False)

    verb_columns = LEASE_FIELDS | {
        *("payload_hash", "result", "finished_at", "window_ends_at", "attempts", "settled_by")
    }
    listing = Listing(named_by=frozenset({"key"}))
    audit_name = "key"

    objects: ClassVar = OnceQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        verbose_name = "result kept by once"
        verbose_name_plural = "results kept by once"
        permissions: ClassVar = [("settle_oncekey", "Can give a result in place of the work")]
        constraints: ClassVar = [
            *Leasable.Meta.constraints,
            models.CheckConstraint(
                name="leasing_oncekey_finished",
                condition=Q(finished_at=None) | Q(released_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def lease_resource(self) -> str:
        return f"once:{self.key}"
