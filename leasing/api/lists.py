"""Pages of the lists: ``limit`` rows, and the cursor of the next page.

The cursor names the row of each source after which the next page begins. So rows that are added in
the meantime neither repeat a row nor hide one, and the thousandth page costs as much as the first.
A list with a condition that no index serves examines REACH rows for a page: such a page may have
fewer rows than its limit, even none, and still be followed by another page.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

from django.db import models
from django.db.models import Q
from ninja import Query, Router
from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from leasing.api.access import Access
from leasing.api.bodies import Limit
from leasing.api.document import linked
from leasing.api.errors import answers
from leasing.web.cursors import NEWEST_FIRST, Cursor, InvalidCursor, Order
from leasing.web.keyset import Record
from leasing.web.paging import cursor_of, page_of

View = TypeVar("View", bound=Callable[..., Any])

#: The cursor of a page of a list.
At = Annotated[
    str,
    Query(
        max_length=4000, description="``next`` from the previous page; empty for the first page."
    ),
]

#: The number of rows that one page of a search examines: a fifth of the number for a page that
#: people read. Programs follow ``next`` by themselves, and a page that finds nothing in a large
#: table takes about as long as one that has examined all of a thousand rows.
REACH = 2_000

__all__ = ["At", "Limit", "Page", "Source", "list_route", "page_at"]


class Page(BaseModel):
    """A part of a list."""

    next: str | None = Field(
        None, description="The cursor of the next page; absent on the last page."
    )

    @model_serializer(mode="wrap")
    def _with_next(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        fields: dict[str, Any] = handler(self)
        if fields["next"] is None:
            del fields["next"]
        return fields


@dataclass
class Source(Generic[Record]):
    """Rows of one model that a list shows: all of them, or those in one state.

    Args:
        rows: The rows.
        order: Their order, which an index should have.
        search: A condition that no index serves; None: there is none.
    """

    rows: models.QuerySet[Record]
    order: Order = NEWEST_FIRST
    search: Q | None = None
    _begin: Cursor | None = field(default=None, init=False)

    @property
    def label(self) -> str:
        return self.rows.model._meta.label_lower


def list_route(
    router: Router, path: str, auth: Access, page: type[BaseModel], **links: dict[str, Any]
) -> Callable[[View], View]:
    """Register a view that lists rows, a page at a time. In the document, its answer has a link to
    the next page.

    Args:
        router: The router.
        path: The path of the list.
        auth: The permission to see the list.
        page: The model of a page.
        links: Further links of its answer: see ``linked``.
    """

    def register(view: View) -> View:
        following = {view.__name__: {"parameters": {"cursor": "$response.body#/next"}}}
        document = linked(200, **following, **links)
        route = router.get(
            path, auth=auth, response=answers({200: page}, 400), openapi_extra=document
        )
        registered: View = route(view)
        return registered

    return register


def page_at(
    at: str, limit: int, *sources: Source[Any], merged_by: Callable[[Any], Any] | None = None
) -> tuple[list[Any], str | None]:
    """Return the rows of a page, and the cursor of the next one; None: it is the last. Raises
    InvalidCursor.

    Args:
        at: The cursor of the page; empty: the first page.
        limit: The number of rows, at most.
        sources: Rows of different models or states, each in its order.
        merged_by: Returns the value of a row by which several sources are merged, the greatest
            first. Each source is in the order of this value, or has one value in all its rows.
    """
    _begin(sources, at)
    pages = [
        page_of(each.rows, each._begin, limit, each.order, each.search, reach=REACH)
        for each in sources
    ]
    # The page takes the first rows of each source; the next page begins with the others.
    numbered = ([(row, n) for row in page.rows] for n, page in enumerate(pages))
    key = None if merged_by is None else lambda each: merged_by(each[0])
    shown = list(islice(heapq.merge(*numbered, key=key, reverse=True), limit))
    cursors: list[Cursor | None] = []
    is_last = True
    for n, (source, page) in enumerate(zip(sources, pages, strict=True)):
        mine = [row for row, of in shown if of == n]
        if len(mine) < len(page.rows):
            is_last = False
            behind = cursor_of(mine[-1], source.order) if mine else source._begin
        else:
            is_last = is_last and not page.older
            last = cursor_of(mine[-1], source.order) if mine else source._begin
            behind = Cursor.decode(page.older) if page.older else last
        cursors.append(behind)
    # One part for each source; an empty part means the beginning of the source.
    following = ".".join(each.encode() if each else "" for each in cursors)
    return [row for row, _ in shown], None if is_last else following


def _begin(sources: Sequence[Source[Any]], at: str) -> None:
    """Set where each of ``sources`` begins. Raises InvalidCursor."""
    if not at:
        return
    parts = at.split(".")
    if len(parts) != len(sources) or not any(parts):
        raise InvalidCursor("of another list")
    for source, part in zip(sources, parts, strict=True):
        cursor = Cursor.decode(part) if part else None
        if cursor is not None and (cursor.model != source.label or cursor.side != "older"):
            raise InvalidCursor("of another list")
        source._begin = cursor
