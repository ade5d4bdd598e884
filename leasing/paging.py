"""Pages by key: 50 rows, a cursor to either side, no OFFSET and no total.

A page is found by where it begins, so rows that come meanwhile neither repeat a row nor hide
one, and the thousandth page costs what the first costs. A search looks through so many rows at
a time and says so; its next page goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Count, Max, Min, Q
from django.utils.dateparse import parse_datetime

from leasing.cursors import Cursor, InvalidCursor
from leasing.glance import Glance, glance
from leasing.kept import Shelf, Value

PAGE_SIZE = 50
COUNT_CAP = 10_000
#: Among how many rows of a list its search counts.
SEARCH_CAP = 1_000
#: Among how many rows one page of a search looks.
REACH = 10_000
MICROSECOND = timedelta(microseconds=1)

Row = TypeVar("Row", bound=models.Model)


@dataclass(frozen=True)
class Order:
    """How a list is sorted: by ``column``, a moment that is never null in these rows, and by key
    where that is the same; by key alone without one. There should be an index."""

    column: str = ""
    descending: bool = True

    @property
    def by(self) -> list[str]:
        """For ``order_by``."""
        return self._by(self.descending)

    @property
    def reversed(self) -> list[str]:
        return self._by(not self.descending)

    @property
    def words(self) -> tuple[str, str, str]:
        """What the links to the first page and to both sides are called."""
        return ("Newest", "Newer", "Older") if self.descending else ("First", "Earlier", "Later")

    def _by(self, descending: bool) -> list[str]:
        sign = "-" if descending else ""
        return [f"{sign}{name}" for name in (self.column, "pk") if name]


NEWEST_FIRST = Order()


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


#: For how many seconds polls of open pages share a count: one that goes beyond its cap, and so
#: takes the longest and changes next to never, for the longest; of others each thousand for one.
FRESH_FOR, MANY_FRESH_FOR = 2.5, 60.0


class Tallies(Shelf[Value]):
    """The counts on tabs, kept in this process. A poll reads two of them anew at most, and all
    when there is news for it: so of eight each is read within four polls, also where nothing else
    changes. ``counts`` are those in a value."""

    def __init__(self, counts: Callable[[Value], Sequence[Capped]]) -> None:
        super().__init__(self._fresh_for, at_once=2)
        self._counts = counts

    def _fresh_for(self, value: Value) -> float:
        counts = self._counts(value)
        if any(count.value > count.cap or count.more for count in counts):
            return MANY_FRESH_FOR
        return max([FRESH_FOR, *[count.value / 1_000 for count in counts]])


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Some rows in the list's order, and the cursors of the pages on either side."""

    rows: Sequence[Row]
    newer: str = ""
    older: str = ""
    #: Whether a cursor led here: the page is not the first.
    moved: bool = False
    #: Among how many rows a search looked, where there are more; 0: it looked at all.
    looked_at: int = 0
    words: tuple[str, str, str] = NEWEST_FIRST.words


def page_of(
    rows: models.QuerySet[Row],
    cursor: Cursor | None,
    size: int = PAGE_SIZE,
    order: Order = NEWEST_FIRST,
    search: Q | None = None,
) -> Page[Row]:
    """The page of ``rows`` at ``cursor``, or the first, in ``order``; of those that meet
    ``search``, where there is one, among the next REACH rows.

    A cursor of another model leaves ``rows`` at its first page, so that one address can hold
    the place in one of several lists. Raises InvalidCursor when it fits no row.
    """
    cursor = _of_model(rows.model, cursor)
    backwards = cursor is not None and cursor.side == "newer"
    there, end = _from(rows, cursor, order, search)
    found = list(there[: size + 1])
    shown = found[:size][::-1] if backwards else found[:size]
    label = rows.model._meta.label_lower
    page = _linked(label, shown, order, cursor, has_more=len(found) > size)
    if end is None or len(found) > size:
        return page
    page = replace(page, looked_at=REACH)
    return replace(page, newer=end.encode()) if backwards else replace(page, older=end.encode())


def glance_at(
    rows: Callable[[], models.QuerySet[Any]],
    columns: Sequence[str],
    cursor: Cursor | None,
    order: Order = NEWEST_FIRST,
    search: Q | None = None,
    key: Hashable = None,
) -> tuple[Glance, Cursor | None]:
    """What tells whether ``page_of`` would bring another page: its rows, one more, and how far
    its search looks. ``key`` tells ``rows`` from all others, where they are always asked for in
    the same words. Raises InvalidCursor."""
    if key is not None and cursor is None and search is None:
        return glance(lambda: rows().order_by(*order.by)[: PAGE_SIZE + 1], columns, key), None
    listed = rows()
    there, end = _from(listed, _of_model(listed.model, cursor), order, search)
    return glance(lambda: there[: PAGE_SIZE + 1], columns), end


def _of_model(model: type[models.Model], cursor: Cursor | None) -> Cursor | None:
    return cursor if cursor is not None and cursor.model == model._meta.label_lower else None


def _from(
    rows: models.QuerySet[Row], cursor: Cursor | None, order: Order, search: Q | None
) -> tuple[models.QuerySet[Row], Cursor | None]:
    """What lies on the cursor's side, the nearest first, and of a search how far it looks; None:
    to the end."""
    if cursor is not None:
        rows = rows.filter(_beyond(rows.model, cursor, order))
    backwards = cursor is not None and cursor.side == "newer"
    by = order.reversed if backwards else order.by
    end = None
    if search is not None:
        end = _end_of_reach(rows.order_by(*by), order, backwards)
        rows = rows.filter(search) if end is None else rows.filter(search, _up_to(end, order))
    return rows.order_by(*by), end


def _linked(
    label: str, rows: list[Row], order: Order, cursor: Cursor | None, *, has_more: bool
) -> Page[Row]:
    moved = cursor is not None
    page = Page(rows, moved=moved, words=order.words)
    if not rows:
        return page
    backwards = cursor is not None and cursor.side == "newer"
    newer = has_more if backwards else moved
    older = True if backwards else has_more
    return replace(
        page,
        newer=_cursor(label, "newer", rows[0], order).encode() if newer else "",
        older=_cursor(label, "older", rows[-1], order).encode() if older else "",
    )


def _cursor(label: str, side: str, row: models.Model, order: Order) -> Cursor:
    if not order.column:
        return Cursor(label, side, row.pk)
    return Cursor(label, side, row.pk, order.column, getattr(row, order.column).isoformat())


def _beyond(model: type[models.Model], cursor: Cursor, order: Order) -> Q:
    """What lies on the cursor's side of its row."""
    key = _key(model, cursor.key)
    if cursor.column != order.column:
        raise InvalidCursor("of a list in another order")
    falling = order.descending == (cursor.side == "older")
    by_key = Q(pk__lt=key) if falling else Q(pk__gt=key)
    if not order.column:
        return by_key
    moment = _moment(cursor.moment)
    # No equality: SQLite compares text, and there a moment without a fraction comes before its
    # own ".000000". The first condition is implied: an index is entered by it.
    since, below = f"{order.column}__gte", f"{order.column}__lt"
    same = Q(**{since: moment, below: moment + MICROSECOND}) & by_key
    if falling:
        return Q(**{below: moment + MICROSECOND}) & (Q(**{below: moment}) | same)
    return Q(**{since: moment}) & (Q(**{since: moment + MICROSECOND}) | same)


def _end_of_reach(rows: models.QuerySet[Any], order: Order, backwards: bool) -> Cursor | None:
    """Where the next REACH of ``rows`` end; None when they are all."""
    falling = order.descending != backwards
    far = Min if falling else Max
    column = order.column or "pk"
    reached = rows[:REACH].aggregate(far=far(column), looked_at=Count("pk"))
    if reached["looked_at"] < REACH:
        return None
    label, side = rows.model._meta.label_lower, "newer" if backwards else "older"
    if not order.column:
        return Cursor(label, side, reached["far"])
    # All of the same moment are looked at: the cursor stands behind the last of them.
    last = -1 if falling else models.BigIntegerField.MAX_BIGINT
    return Cursor(label, side, last, column, reached["far"].isoformat())


def _up_to(end: Cursor, order: Order) -> Q:
    falling = order.descending == (end.side == "older")
    if not order.column:
        return Q(pk__gte=end.key) if falling else Q(pk__lte=end.key)
    moment = _moment(end.moment)
    if falling:
        return Q(**{f"{order.column}__gte": moment})
    return Q(**{f"{order.column}__lt": moment + MICROSECOND})


def _key(model: type[models.Model], text: Any) -> Any:
    try:
        key = model._meta.pk.to_python(text)
        model._meta.pk.run_validators(key)
    except (ValidationError, ValueError, OverflowError) as error:
        raise InvalidCursor("not a cursor") from error
    return key


def _moment(text: str) -> datetime:
    try:
        moment = parse_datetime(text)
        if moment is None or moment.tzinfo is None:
            raise InvalidCursor("not a cursor")
        moment + MICROSECOND
    except (ValueError, OverflowError) as error:
        raise InvalidCursor("not a cursor") from error
    return moment


def chunks_of(
    rows: models.QuerySet[Row],
    order: Order = NEWEST_FIRST,
    search: Q | None = None,
    size: int = 500,
) -> Iterator[Sequence[Row]]:
    """All of ``rows`` that meet ``search``, in ``order``, as the pages show them: so many at a
    time, for an export."""
    cursor: Cursor | None = None
    while True:
        page = page_of(rows, cursor, size, order, search)
        yield page.rows
        if not page.older:
            return
        cursor = Cursor.decode(page.older)


__all__ = [
    "COUNT_CAP",
    "NEWEST_FIRST",
    "PAGE_SIZE",
    "REACH",
    "Capped",
    "Cursor",
    "InvalidCursor",
    "Order",
    "Page",
    "capped_count",
    "capped_search",
    "chunks_of",
    "glance_at",
    "page_of",
    "Tallies",
]
