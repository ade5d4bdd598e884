"""Pages by key: 50 rows, a cursor to either side, no OFFSET and no total.

A page is found by where it begins, so rows that come meanwhile neither repeat a row nor hide
one, and the thousandth page costs what the first costs. A search looks through REACH rows at a
time and says so; its next page goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from django.db import models
from django.db.models import Q

from leasing.web import keyset
from leasing.web.cursors import NEWEST_FIRST, Cursor, Order
from leasing.web.keyset import Record, rows_from

PAGE_SIZE = 50
#: Among how many rows one page of a search looks.
REACH = 10_000
#: The same of a search that reads what it searches.
READING_REACH = 1_000
#: A condition that no index serves, or a function that returns it for the rows among which a page
#: looks: it may read them.
Search = Q | Callable[[models.QuerySet[Any]], Q]


@dataclass(frozen=True)
class Page(Generic[Record]):
    """Some rows in the list's order, and the cursors of the pages on either side."""

    rows: Sequence[Record]
    newer: str = ""
    older: str = ""
    #: True if a cursor led here: the page is not the first.
    moved: bool = False
    #: Among how many rows a search looked, where there are more; 0: it looked at all.
    looked_at: int = 0
    words: tuple[str, str, str] = NEWEST_FIRST.words


def page_of(
    rows: models.QuerySet[Record],
    cursor: Cursor | None,
    size: int = PAGE_SIZE,
    order: Order = NEWEST_FIRST,
    search: Search | None = None,
    *,
    reach: int | None = None,
) -> Page[Record]:
    """Return a page of ``rows``. A cursor of another model leaves ``rows`` at its first page, so
    that one address can hold the cursor of one of several lists. Raises InvalidCursor when it fits
    no row.

    Args:
        rows: The rows of the list.
        cursor: The position of the page; None is the first page.
        size: Rows of a page.
        order: The order of the list.
        search: A condition for the rows; None: all rows.
        reach: The number of rows among which the search looks; None: REACH or READING_REACH.
    """
    reach = reach or (READING_REACH if callable(search) else REACH)
    cursor = _of_model(rows.model, cursor)
    backwards = cursor is not None and cursor.side == "newer"
    there, end = rows_from(rows, cursor, order), None
    wanted = condition_of(search, there, reach)
    if wanted is None:
        found = keyset.nearest(there, order, size + 1)
        places = [cursor_of(row, order) for row in found]
    else:
        places, end = keyset.search(there, order, wanted, size + 1, reach)
        by = there.query.order_by
        found = list(rows.filter(pk__in=[each.key for each in places]).order_by(*by))
    has_more, places = len(places) > size, places[:size]
    if backwards:
        found, places = found[:size][::-1], places[::-1]
    page = _linked(found[:size], places, order, cursor, has_more=has_more)
    if end is None or has_more:
        return page
    page = replace(page, looked_at=reach)
    if backwards:
        return replace(page, newer=replace(end, side="newer").encode())
    return replace(page, older=end.encode())


def condition_of(search: Search | None, rows: models.QuerySet[Any], reach: int) -> Q | None:
    """Return the condition of ``search`` for the next ``reach`` of ``rows``, which are sorted."""
    return search(rows[:reach]) if callable(search) else search


def _of_model(model: type[models.Model], cursor: Cursor | None) -> Cursor | None:
    return cursor if cursor is not None and cursor.model == model._meta.label_lower else None


def _linked(
    rows: list[Record],
    places: Sequence[Cursor],
    order: Order,
    cursor: Cursor | None,
    *,
    has_more: bool,
) -> Page[Record]:
    """Return the page of ``rows`` with the cursors of its neighbours.

    Args:
        rows: Those of its rows that are there: of what a search found some may have gone since.
        places: The places of all its rows.
        order: The order of the list.
        cursor: The place from which the page was read; None: the first page.
        has_more: True if more rows follow on the cursor's side.
    """
    moved = cursor is not None
    page = Page(rows, moved=moved, words=order.words)
    if not places:
        return page
    backwards = cursor is not None and cursor.side == "newer"
    newer = has_more if backwards else moved
    older = True if backwards else has_more
    return replace(
        page,
        newer=replace(places[0], side="newer").encode() if newer else "",
        older=places[-1].encode() if older else "",
    )


def cursor_of(row: models.Model, order: Order) -> Cursor:
    """Return the cursor of the rows that are older than ``row``."""
    label = row._meta.label_lower
    if not order.column:
        return Cursor(label, "older", row.pk)
    return Cursor(label, "older", row.pk, order.column, getattr(row, order.column).isoformat())


def chunks_of(
    rows: models.QuerySet[Record],
    order: Order = NEWEST_FIRST,
    search: Search | None = None,
    size: int = 500,
    *,
    reach: int | None = None,
) -> Iterator[Sequence[Record]]:
    """Yield rows as the pages show them, ``size`` at a time, for an export. Arguments are those of
    ``page_of``."""
    cursor: Cursor | None = None
    while True:
        page = page_of(rows, cursor, size, order, search, reach=reach)
        yield page.rows
        if not page.older:
            return
        cursor = Cursor.decode(page.older)
