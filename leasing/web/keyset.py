"""Keysets: the conditions by which a page is found from the row next to it, without OFFSET."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models import F, Func, Q, Value
from django.utils.dateparse import parse_datetime

from leasing.functions import as_utc
from leasing.validation.keys import key_of
from leasing.validation.moments import check_moment
from leasing.web.cursors import Cursor, InvalidCursor, Order

#: Among how many rows one page of a search looks.
REACH = 10_000
MICROSECOND = timedelta(microseconds=1)

Record = TypeVar("Record", bound=models.Model)


def rows_from(
    rows: models.QuerySet[Record], cursor: Cursor | None, order: Order, search: Q | None
) -> tuple[models.QuerySet[Record], Cursor | None]:
    """Return the rows on the cursor's side, the nearest first, that meet a search, and where the
    search ends its look at the next REACH rows; None: it looks at all.

    Args:
        rows: All rows of the list.
        cursor: The place in the list; None: its beginning.
        order: The order of the list.
        search: A condition that no index serves; None: there is none.

    Raises InvalidCursor when the cursor fits no row.
    """
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


def _beyond(model: type[models.Model], cursor: Cursor, order: Order) -> Q:
    """Return the condition for rows on the cursor's side of its row."""
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
    entered = Q(KeysetComparison(model, order.column, "<" if falling else ">", moment, key))
    if falling:
        return entered & Q(**{below: moment + MICROSECOND}) & (Q(**{below: moment}) | same)
    return entered & Q(**{since: moment}) & (Q(**{since: moment + MICROSECOND}) | same)


def _end_of_reach(rows: models.QuerySet[Any], order: Order, backwards: bool) -> Cursor | None:
    """Return the end of the next REACH of ``rows``; None when they are all."""
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
    """Return the condition for rows before ``end``, and its row."""
    falling = order.descending == (end.side == "older")
    by_key = Q(pk__gte=end.key) if falling else Q(pk__lte=end.key)
    if not order.column:
        return by_key
    moment = _moment(end.moment)
    since, below = f"{order.column}__gte", f"{order.column}__lt"
    entered = Q(KeysetComparison(model, order.column, ">=" if falling else "<=", moment, end.key))
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


class KeysetComparison(Func):
    """Compare rows by a moment and, where that is the same, by key: True if one lies on one side of
    another. It is implied by the conditions next to it, but an index of both columns is entered by
    it at the right entry: thousands of rows may be of the same moment, as those that were enqueued
    at once are.

    Args:
        model: The model of the rows.
        column: The name of the column of moments.
        sign: The operator: "<", "<=", ">" or ">=".
        moment: The moment of the other row.
        key: The key of the other row.
    """

    output_field = models.BooleanField()
    arity = 4

    def __init__(
        self, model: type[models.Model], column: str, sign: str, moment: datetime, key: Any
    ) -> None:
        values = Value(moment, models.DateTimeField()), Value(key, model._meta.pk)
        super().__init__(F(column), F("pk"), *values, sign=sign)

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **extra: Any) -> Any:
        parts = [compiler.compile(each) for each in self.get_source_expressions()]
        column, pk, moment, key = [sql for sql, _ in parts]
        sql = f"({column}, {pk}) {self.extra['sign']} ({moment}, {key})"
        return sql, [param for _, params in parts for param in params]

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return "1 = 1", []  # there the same moment may be two texts
