"""The conditional updates of work that is done once a window.

acquire   ... and not finished, or its window is over
finish    this grant, not released
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db.models import Q

from leasing.exceptions import LeaseHeld, PayloadMismatch
from leasing.functions import DbNow, after
from leasing.querysets.granting import TRIES, pause_shortly
from leasing.querysets.holder import releasing
from leasing.querysets.leasable import LeasableQuerySet, LeaseState
from leasing.validation.terms import Terms

if TYPE_CHECKING:
    from leasing.models import OnceKey


@dataclass(frozen=True, slots=True)
class OnceTerms(Terms):
    """Terms with the window, and the hash of what the work is to be done with."""

    window: timedelta = timedelta(0)
    payload_hash: str = ""


class OnceQuerySet(LeasableQuerySet["OnceKey"]):
    """Keys of work that is done once a window."""

    keeps_events = False

    def available(self) -> Self:
        again = Q(finished_at=None) | Q(window_ends_at__lte=DbNow())
        return super().available().filter(again)

    def granting(self, terms: Terms) -> dict[str, Any]:
        assert isinstance(terms, OnceTerms)
        return super().granting(terms) | {
            "payload_hash": terms.payload_hash,
            "result": None,
            "finished_at": None,
            "window_ends_at": after(terms.window),
        }

    def finish(self, row: OnceKey, result: Any) -> None:
        """Keep ``result`` until the window ends, and end the grant. Raises LeaseLost."""
        rows = self.home(row)
        # No lock before: an update that waited judges the grant again, and one that has
        # expired may still finish.
        finished = rows._of_grant(row).update(result=result, finished_at=DbNow(), **releasing())
        if not finished:
            raise rows._refuse(row, "finish")

    def _attempt(self, resource: str, terms: Terms, key: dict[str, Any]) -> OnceKey:
        """Begin the work, or return the row of work that is finished.

        Raises LeaseHeld while it is under way, PayloadMismatch for another payload.
        """
        assert isinstance(terms, OnceTerms)
        same = Q(payload_hash=terms.payload_hash) | Q(window_ends_at__lte=DbNow())
        for number in range(TRIES):
            row = self.filter(same)._grant(terms, **key)
            if row is not None:
                return row
            current = self._everything().filter(**key).with_state().first()
            if current is None:
                self._everything().bulk_create([self.model(**key)], ignore_conflicts=True)
                continue
            if current.window_ends_at > current.now:
                if current.payload_hash != terms.payload_hash:
                    raise PayloadMismatch(current.key)
                if current.finished_at is not None:
                    return current
            if current.state == LeaseState.ACTIVE:
                raise LeaseHeld(resource, current.holder, current.expires_at)
            if number:
                pause_shortly()
        raise LeaseHeld(resource)
