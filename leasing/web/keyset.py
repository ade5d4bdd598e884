"""Keysets: the conditions by which a page is found from the row next to it, without OFFSET."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models import BooleanField, Case, F, Func, Q, Value, When
from django.utils.dateparse import parse_datetime

from leasing.functions import as_utc
from leasing.validation.values import check_moment, key_of
from leasing.web.cursors import Cursor, InvalidCursor, Order

MICROSECOND = timedelta(microseconds=1)

Record = TypeVar("Record", bound=models.Model)
#: The place of a row in a list: its moment, None in an order by key alone, and its key.
Place = tuple[datetime | None, Any]


def rows_from(
    rows: models.QuerySet[Record], cursor: Cursor | None, order: Order
) -> models.QuerySet[Record]:
    """Return the rows on the cursor's side, the nearest first.

    Args:
        rows: All rows of the list.
        cursor: The place in the list; None: its beginning.
        order: The order of the list.

    Raises InvalidCursor when the cursor fits no row.
    """
    if cursor is not None:
        rows = rows.filter(_beyond(rows, cursor, order))
    backwards = cursor is not None and cursor.side == "newer"
    return rows.order_by(*(order.reversed if backwards else order.by))


def nearest(rows: models.QuerySet[Record], order: Order, count: int) -> list[Record]:
    """Return the first ``count`` of ``rows``, which are sorted in the order of the list."""
    found = {row.pk: row for each in _parts(rows, order) for row in each[:count]}
    if not order.parts:
        return [*found.values()]

    def place(row: Record) -> Place:
        return getattr(row, order.column) if order.column else None, row.pk

    return sorted(found.values(), key=place, reverse=_falls(rows))[:count]


def search(
    rows: models.QuerySet[Any], order: Order, wanted: Q, count: int, reach: int
) -> tuple[list[Cursor], Cursor | None]:
    """Return the places of those of the next ``reach`` rows that meet a condition, and the place
    at which the look ended; None: there are no more rows, or it found enough.

    Args:
        rows: The rows, sorted in the order of the list.
        order: That order.
        wanted: The condition, which no index serves.
        count: The number of places, at most.
        reach: The number of rows to look at, at most; of each part of the order so many.
    """
    looks = [_look(each, order, wanted, count, reach) for each in _parts(rows, order)]
    met = [place for places, _ in looks for place in places]
    ends = [end for _, end in looks if end is not None]
    if order.parts:
        falls = _falls(rows)
        met = sorted(set(met), reverse=falls)
        if ends:  # what one look has found behind the end of another is not next
            ends = [max(ends) if falls else min(ends)]
            met = [each for each in met if (each >= ends[0] if falls else each <= ends[0])]
    places = [_cursor(rows.model, order, *each) for each in met[:count]]
    return places, _cursor(rows.model, order, *ends[0]) if ends and len(places) < count else None


def _parts(rows: models.QuerySet[Record], order: Order) -> Iterable[models.QuerySet[Record]]:
    """Return the parts of ``rows`` that are looked up apart: one after the other, so that a row
    which goes from one to the next meanwhile is found twice, and not missed."""
    return [rows.filter(part) for part in order.parts] or [rows]


def _falls(rows: models.QuerySet[Any]) -> bool:
    """Return True if ``rows`` are sorted from the latest to the earliest."""
    return str(rows.query.order_by[0]).startswith("-")


def _look(
    rows: models.QuerySet[Any], order: Order, wanted: Q, count: int, reach: int
) -> tuple[list[Place], Place | None]:
    """``search`` in rows of one part."""
    met = Case(When(wanted, then=Value(True)), default=Value(False))
    reached = rows[:reach].values(far_at=F(order.column or "pk"), far_key=F("pk"), met=met)
    try:
        sql, params = reached.query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return [], None
    with connections[rows.db].cursor() as cursor:
        # The condition is judged outside of the limit: within it, PostgreSQL may think that it is
        # met so seldom that reading the whole table takes less. The rows come in order, and are
        # numbered in it without being sorted or kept.
        cursor.execute(
            "SELECT far_at, far_key, met, place FROM"
            f" (SELECT reached.*, ROW_NUMBER() OVER () AS place FROM ({sql}) reached) numbered"
            f" WHERE met OR place = {reach:d} LIMIT {count:d}",
            params,
        )
        found = cursor.fetchall()
    places = [_place(rows.model, order, at, key) for at, key, is_met, _ in found if is_met]
    end = [_place(rows.model, order, at, key) for at, key, _, place in found if place == reach]
    return places, end[0] if end and len(places) < count else None


def _place(model: type[models.Model], order: Order, at: Any, key: Any) -> Place:
    """Return the place of a row, as the database brings its moment and key."""
    return as_utc(at) if order.column else None, model._meta.pk.to_python(key)


def _cursor(model: type[models.Model], order: Order, at: datetime | None, key: Any) -> Cursor:
    """Return the cursor of the rows that follow the one at this place."""
    label = model._meta.label_lower
    if at is None:
        return Cursor(label, "older", key)
    return Cursor(label, "older", key, order.column, at.isoformat())


class _Beyond(Func):
    """The condition that two columns, compared as one, are below or above two values."""

    output_field = BooleanField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        parts = [compiler.compile(each) for each in self.get_source_expressions()]
        first, second, *values = (text for text, _ in parts)
        text = f"({first}, {second}) {self.extra['sign']} ({', '.join(values)})"
        return text, [param for _, own in parts for param in own]


def _beyond(rows: models.QuerySet[Any], cursor: Cursor, order: Order) -> Q:
    """Return the condition for rows on the cursor's side of its row."""
    key = _key(rows.model, cursor.key)
    if cursor.column != order.column:
        raise InvalidCursor("of a list in another order")
    falling = order.descending == (cursor.side == "older")
    by_key = Q(pk__lt=key) if falling else Q(pk__gt=key)
    if not order.column:
        return by_key
    moment = _moment(cursor.moment)
    if _compares_rows(rows):
        # An index of both columns is entered by it at the right entry: thousands of rows may be of
        # the same moment, as those that were enqueued at once are. The same said with OR makes
        # PostgreSQL read all of them, and sort.
        other = Value(moment, models.DateTimeField()), Value(key, rows.model._meta.pk)
        return Q(_Beyond(F(order.column), F("pk"), *other, sign="<" if falling else ">"))
    since, below = f"{order.column}__gte", f"{order.column}__lt"
    same = Q(**{since: moment, below: moment + MICROSECOND}) & by_key
    if falling:
        return Q(**{below: moment + MICROSECOND}) & (Q(**{below: moment}) | same)
    return Q(**{since: moment}) & (Q(**{since: moment + MICROSECOND}) | same)


def _compares_rows(rows: models.QuerySet[Any]) -> bool:
    """Return True if the database compares a moment and a key together. SQLite compares moments as
    text, where one without a fraction comes before its own ".000000"."""
    return connections[rows.db].vendor == "postgresql"


def _key(model: type[models.Model], text: Any) -> Any:
    try:
        key = key_of(model, text)
    except ValueError as error:
        raise InvalidCursor("not a cursor") from error
    # A cursor says 17 as it was written here: Python reads "1_7" and " 17" as that, too.
    if isinstance(key, int) and str(key) != str(text):
        raise InvalidCursor("not a cursor")
    return key


def _moment(text: str) -> datetime:
    try:
        moment = parse_datetime(text)
        if moment is None:
            raise InvalidCursor("not a cursor")
        return check_moment(moment, "a cursor")
    except ValueError as error:
        raise InvalidCursor("not a cursor") from error
