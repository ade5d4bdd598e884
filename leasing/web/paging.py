"""Pages by key: 50 rows, a cursor to either side, no OFFSET and no total.

A page is found by where it begins, so rows that come meanwhile neither repeat a row nor hide
one, and the thousandth page costs what the first costs. A search looks through REACH rows at a
time and says so; its next page goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from django.db import models
from django.db.models import Q

from leasing.web.cursors import NEWEST_FIRST, Cursor, Order
from leasing.web.keyset import REACH, Record, rows_from

PAGE_SIZE = 50


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
    search: Q | None = None,
) -> Page[Record]:
    """Return a page of ``rows``. A cursor of another model leaves ``rows`` at its first page, so
    that one address can hold the cursor of one of several lists. Raises InvalidCursor when it fits
    no row.

    Args:
        rows: The rows of the list.
        cursor: The position of the page; None is the first page.
        size: Rows of a page.
        order: The order of the list.
        search: A condition for the rows, met by those among the next REACH; None: all rows.
    """
    cursor = _of_model(rows.model, cursor)
    backwards = cursor is not None and cursor.side == "newer"
    there, end = rows_from(rows, cursor, order, search)
    found = list(there[: size + 1])
    shown = found[:size][::-1] if backwards else found[:size]
    page = _linked(shown, order, cursor, has_more=len(found) > size)
    if end is None or len(found) > size:
        return page
    page = replace(page, looked_at=REACH)
    return replace(page, newer=end.encode()) if backwards else replace(page, older=end.encode())


def _of_model(model: type[models.Model], cursor: Cursor | None) -> Cursor | None:
    return cursor if cursor is not None and cursor.model == model._meta.label_lower else None


def _linked(
    rows: list[Record], order: Order, cursor: Cursor | None, *, has_more: bool
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
        newer=replace(cursor_of(rows[0], order), side="newer").encode() if newer else "",
        older=cursor_of(rows[-1], order).encode() if older else "",
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
    search: Q | None = None,
    size: int = 500,
) -> Iterator[Sequence[Record]]:
    """Yield rows as the pages show them, some at a time, for an export.

    Args:
        rows: The rows of the list.
        order: The order of the list.
        search: A condition for the rows; None: all rows.
        size: The number of rows in one query.
    """
    cursor: Cursor | None = None
    while True:
        page = page_of(rows, cursor, size, order, search)
        yield page.rows
        if not page.older:
            return
        cursor = Cursor.decode(page.older)
