"""The number of grants that a token with a bound holds at once, counted by grants that were made
through it.

reserve   under a lock on the token, within its bound: no two requests take the same room
settle    the reservations of a request become the grants that it won

A request that is sent again while the first is under way shares its reservation: either may win,
and the last of them that won nothing leaves it.

Grants that have ended are forgotten when there is no room left, so there are never more rows than
the bound, and nothing has to be told of a release. A process that dies between the two leaves
reservations, which take up room for RESERVED_FOR after the longest wait for a grant.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db.models import Count, F, Q

from leasing.conf import leasing_settings
from leasing.db.dialects import atomic, durable, lock
from leasing.db.routing import RoutedQuerySet
from leasing.functions import DbNow, after

if TYPE_CHECKING:
    from leasing.models import ApiToken, Leasable, TokenGrant

#: Longer than a request takes that does not wait for its grant.
RESERVED_FOR = timedelta(minutes=5)


class TokenGrantQuerySet(RoutedQuerySet["TokenGrant"]):
    """Grants of tokens with a bound: ``TokenGrant.objects``."""

    def reserve(self, token: ApiToken, wanted: int, request_id: uuid.UUID) -> int:
        """Reserve room for ``wanted`` grants of ``token``, which has a bound. Returns for how many
        there is room. A request that is sent again has the room that it had."""
        rows, bound = self.home(), token.max_held
        assert bound is not None
        with durable(rows.db):
            tokens = type(token).objects.using(rows.db).filter(pk=token.pk)
            lock(tokens.values_list("pk")).get()
            own = rows.filter(token=token)
            mine = Count("pk", filter=Q(request_id=request_id))
            counts: dict[str, int] = own.aggregate(taken=Count("pk"), mine=mine)
            if counts["mine"]:
                again = own.filter(request_id=request_id)
                shared = again.update(sharing=F("sharing") + 1, reserved_at=DbNow())
                if shared:  # else the first has left it meanwhile
                    return shared
            taken = counts["taken"]
            if taken + wanted > bound:
                own._forget_ended()
                taken = own.count()
            room = max(0, min(wanted, bound - taken))
            rows.bulk_create(self.model(token=token, request_id=request_id) for _ in range(room))
        return room

    def settle(self, token: ApiToken, request_id: uuid.UUID, granted: Iterable[Leasable]) -> None:
        """Replace the reservations of a request by its grants; by nothing if it won none.

        Args:
            token: The token of the request.
            request_id: The id under which it reserved.
            granted: The rows that it was granted.
        """
        rows = self.home()
        mine = rows.filter(token=token, request_id=request_id)
        won = list(granted)
        # One grant for one reservation is what nearly every request has.
        if len(won) == 1 and mine.update(**_columns(won[0])) == 1:
            return
        with atomic(rows.db):
            if not won:
                # Where it was sent twice, the other may have won, or may yet.
                reserved = mine.filter(grant_id=None)
                reserved.update(sharing=F("sharing") - 1)
                reserved.filter(sharing=0).delete()
                return
            mine.delete()
            rows.bulk_create(
                self.model(token=token, request_id=request_id, **_columns(row)) for row in won
            )

    def _forget_ended(self) -> None:
        """Delete those of these rows whose grants have ended, and reservations of the dead."""
        wait = timedelta(seconds=leasing_settings.API_MAX_WAIT)
        self.filter(grant_id=None, reserved_at__lte=after(-RESERVED_FOR - wait)).delete()
        granted = self.exclude(grant_id=None).order_by("model")
        for label, group in groupby(granted, key=lambda each: each.model):
            grants = list(group)
            held = _held(label, grants)
            self.filter(pk__in=[each.pk for each in grants if each.grant_id not in held]).delete()


def _columns(row: Leasable) -> dict[str, Any]:
    """Return what is noted of the grant of ``row``."""
    label = row.leased_model()._meta.label_lower
    return {"model": label, "key": str(row.pk), "grant_id": row.grant_id}


def _held(label: str, grants: list[TokenGrant]) -> set[Any]:
    """Return the ids of those of ``grants``, and maybe of others, that are live now."""
    try:
        model: Any = apps.get_model(label)
    except LookupError:
        return set()  # its app was removed
    rows = model.lease_rows().home().active().filter(pk__in=[each.key for each in grants])
    return set(rows.values_list("grant_id", flat=True))
