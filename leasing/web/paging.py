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

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models import F, Q
from django.utils.dateparse import parse_datetime

from leasing.functions import as_utc
from leasing.validation.keys import key_of
from leasing.validation.moments import check_moment
from leasing.web.counts import COUNT_CAP, Capped, Tallies, capped_count, capped_search
from leasing.web.cursors import NEWEST_FIRST, Cursor, InvalidCursor, Order
from leasing.web.fingerprint import Glance, glance
from leasing.web.row_comparison import Beside

PAGE_SIZE = 50
#: Among how many rows one page of a search looks.
REACH = 10_000
MICROSECOND = timedelta(microseconds=1)

Record = TypeVar("Record", bound=models.Model)


@dataclass(frozen=True)
class Page(Generic[Record]):
    """Some rows in the list's order, and the cursors of the pages on either side."""

    rows: Sequence[Record]
    newer: str = ""
    older: str = ""
    #: Whether a cursor led here: the page is not the first.
    moved: bool = False
    #: Among how many rows a search looked, where there are more; 0: it looked at all.
    looked_at: int = 0
    words: tuple[str, str, str] = NEWEST_FIRST.words


def page_of(
    rows: models.QuerySet[Record],
    cursor: Cursor | None,
    size: int = PAGE_SIZE,
    order: Order = NEWEST_FIRST,
    search: Q | None = None,
) -> Page[Record]:
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
    rows: models.QuerySet[Record], cursor: Cursor | None, order: Order, search: Q | None
) -> tuple[models.QuerySet[Record], Cursor | None]:
    """What lies on the cursor's side, the nearest first, and of a search how far it looks; None:
    to the end."""
    if cursor is not None:
        rows = rows.filter(_beyond(rows.model, cursor, order))
    backwards = cursor is not None and cursor.side == "newer"
    by = order.reversed if backwards else order.by
    end = None
    if search is not None:
        end = _end_of_reach(rows.order_by(*by), order, backwards)
        rows = (
            rows.filter(search)
            if end is None
            else rows.filter(search, _up_to(rows.model, end, order))
        )
    return rows.order_by(*by), end


def _linked(
    label: str, rows: list[Record], order: Order, cursor: Cursor | None, *, has_more: bool
) -> Page[Record]:
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
    entered = Q(Beside(model, order.column, "<" if falling else ">", moment, key))
    if falling:
        return entered & Q(**{below: moment + MICROSECOND}) & (Q(**{below: moment}) | same)
    return entered & Q(**{since: moment}) & (Q(**{since: moment + MICROSECOND}) | same)


def _end_of_reach(rows: models.QuerySet[Any], order: Order, backwards: bool) -> Cursor | None:
    """Where the next REACH of ``rows`` end; None when they are all."""
    side = "newer" if backwards else "older"
    falling = order.descending != backwards
    model = rows.model
    reached = rows[:REACH].values(far_at=F(order.column or "pk"), far_key=F("pk"))
    try:
        sql, params = reached.query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return None
    down = "ASC" if falling else "DESC"
    with connections[rows.db].cursor() as cursor:
        # The last of them, and how many they are, in one go.
        cursor.execute(
            f"SELECT far_at, far_key, COUNT(*) OVER () FROM ({sql}) reached"
            f" ORDER BY far_at {down}, far_key {down} LIMIT 1",
            params,
        )
        last = cursor.fetchone()
    if last is None or last[2] < REACH:
        return None
    at, key, _ = last
    label, key = model._meta.label_lower, model._meta.pk.to_python(key)
    if not order.column:
        return Cursor(label, side, key)
    return Cursor(label, side, key, order.column, as_utc(at).isoformat())


def _up_to(model: type[models.Model], end: Cursor, order: Order) -> Q:
    """What lies before ``end``, and its row."""
    falling = order.descending == (end.side == "older")
    by_key = Q(pk__gte=end.key) if falling else Q(pk__lte=end.key)
    if not order.column:
        return by_key
    moment = _moment(end.moment)
    since, below = f"{order.column}__gte", f"{order.column}__lt"
    entered = Q(Beside(model, order.column, ">=" if falling else "<=", moment, end.key))
    if falling:
        beyond = Q(**{since: moment + MICROSECOND})
        return entered & Q(**{since: moment}) & (beyond | by_key)
    return entered & Q(**{below: moment + MICROSECOND}) & (Q(**{below: moment}) | by_key)


def _key(model: type[models.Model], text: Any) -> Any:
    try:
        return key_of(model, text)
    except ValueError as error:
        raise InvalidCursor("not a cursor") from error


def _moment(text: str) -> datetime:
    try:
        moment = parse_datetime(text)
        if moment is None:
            raise InvalidCursor("not a cursor")
        return check_moment(moment, "a cursor")
    except ValueError as error:
        raise InvalidCursor("not a cursor") from error


def chunks_of(
    rows: models.QuerySet[Record],
    order: Order = NEWEST_FIRST,
    search: Q | None = None,
    size: int = 500,
) -> Iterator[Sequence[Record]]:
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
