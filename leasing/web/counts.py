"""Counts that stop where it is not worth to go on, and that polls of open pages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Count, Q

from leasing.web.cache import SHARED_FOR, Shelf, Value

if TYPE_CHECKING:
    from leasing.web.cursors import Order

COUNT_CAP = 10_000
#: Among how many rows of a list its search counts.
SEARCH_CAP = 1_000


@dataclass(frozen=True)
class Capped:
    """A count that stopped counting at ``cap``, or that left rows uncounted (``more``)."""

    value: int
    cap: int = COUNT_CAP
    more: bool = False

    def __str__(self) -> str:
        if self.value > self.cap:
            return f"{self.cap:,}+"
        return f"{self.value:,}+" if self.more else f"{self.value:,}"

    def __bool__(self) -> bool:
        return self.value > 0

    def __add__(self, other: Capped) -> Capped:
        return Capped(self.value + other.value, self.cap, self.more or other.more)


def capped_count(
    rows: models.QuerySet[Any], cap: int = COUNT_CAP, order: Order | None = None
) -> Capped:
    """How many ``rows`` there are, looking at ``cap`` + 1 of them at most.

    ``order`` is that of an index of ``rows``, where there is one: without it a database that
    takes them for many may look through the whole table for the first.
    """
    ordered = rows.order_by(*order.by) if order else rows.order_by()
    return Capped(ordered.values("pk")[: cap + 1].count(), cap)


def capped_search(
    rows: models.QuerySet[Any], search: Q, cap: int = SEARCH_CAP, order: Order | None = None
) -> Capped:
    """How many of ``rows`` meet ``search``, looking at ``cap`` + 1 of ``rows`` at most, the first
    in ``order``: see ``capped_count``."""
    ordered = rows.order_by(*order.by) if order else rows.order_by()
    found = ordered[: cap + 1].aggregate(looked_at=Count("pk"), found=Count("pk", filter=search))
    return Capped(found["found"], cap, more=found["looked_at"] > cap)


#: For how many seconds polls share a count that goes beyond its cap: it takes the longest, and
#: changes next to never. Others they share for SHARED_FOR, or a second for each thousand.
MANY_FRESH_FOR = 60.0


class Tallies(Shelf[Value]):
    """The counts on tabs, kept in this process. A poll reads ``at_once`` of the stale ones anew at
    most, and all when there is news for it: so each is read every few polls, also where nothing
    else changes. ``counts`` are those in a value."""

    def __init__(self, counts: Callable[[Value], Sequence[Capped]], at_once: int) -> None:
        super().__init__(self._fresh_for, at_once)
        self._counts = counts

    def _fresh_for(self, value: Value) -> float:
        counts = self._counts(value)
        if any(count.value > count.cap or count.more for count in counts):
            return MANY_FRESH_FOR
        return max([SHARED_FOR, *[count.value / 1_000 for count in counts]])
