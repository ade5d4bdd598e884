"""The database's clock, and fencing tokens made from it, as expressions.

Who holds a lease is decided by one clock, the database's, read by the statement that decides.
``now()`` of PostgreSQL is the start of the transaction: a lease granted two seconds into one
would be two seconds short.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, DateTimeField, DurationField, F, Func
from django.db.models.expressions import Combinable, CombinedExpression, ExpressionWrapper
from django.db.models.functions import Greatest

from leasing.runtime import clock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DbNow(Func):
    """The database's clock as the statement starts, in UTC."""

    output_field = DateTimeField()
    arity = 0

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        running = "STATEMENT_TIMESTAMP()"
        ahead = f"({running} + INTERVAL '{{}} seconds')"
        template = _now(running, ahead, "'{}+00'::timestamptz")
        return self.as_sql(compiler, connection, template=template, **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        # The form in which Django's own SQLite backend stores a datetime, to the digit: these
        # are compared as text, and there ".5" comes before ".500". A whole second has no digits.
        text = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW'{})"
        running = f"REPLACE({text}, '.000000', '')"
        template = _now(running.format(""), running.format(", '+{} seconds'"), "'{}'")
        return self.as_sql(compiler, connection, template=template, **extra)


def _now(running: str, ahead: str, stopped: str) -> str:
    """The SQL of the database's clock; of one that a test has put ahead, or stopped."""
    stand_in = clock.stand_in
    if stand_in is None:
        return running
    if stand_in.stopped_at is None:
        return ahead.format(f"{stand_in.passed:.6f}") if stand_in.passed else running
    return stopped.format(stand_in.stopped_at.replace(tzinfo=None).isoformat(" "))


class DbMicroseconds(Func):
    """The database's clock in whole microseconds since 1970."""

    output_field = BigIntegerField()
    arity = 0

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = "(EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP()) * 1000000)::bigint"
        return self.as_sql(compiler, connection, template=template, **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        # Whole numbers all the way: SQLite's own fraction stops at milliseconds.
        template = (
            "(CAST(STRFTIME('%%%%s', 'NOW') AS INTEGER) * 1000000"
            " + CAST(SUBSTR(STRFTIME('%%%%f', 'NOW'), 4) AS INTEGER) * 1000)"
        )
        return self.as_sql(compiler, connection, template=template, **extra)


def next_token() -> Combinable:
    """The fencing token that follows the row's own: greater by one at least, and never less
    than the clock in microseconds, so that tokens also rise when a pruned row is created again."""
    return Greatest(F("fencing_token") + 1, DbMicroseconds())


def after(duration: timedelta | Combinable) -> Combinable:
    """The moment that lies ``duration`` after the database's now."""
    end: CombinedExpression = DbNow() + duration
    return ExpressionWrapper(end, output_field=DateTimeField())


def remaining(field: str = "expires_at") -> Combinable:
    """Return the time until the moment in ``field``, by the database's clock."""
    return ExpressionWrapper(F(field) - DbNow(), output_field=DurationField())


def database_now(using: str) -> datetime:
    """Ask the database ``using`` for its time."""
    connection = connections[using]
    now = DbNow()
    to_sql: Any = getattr(now, f"as_{connection.vendor}", now.as_sql)
    sql, params = to_sql(None, connection)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql % ()}", params)
        (value,) = cursor.fetchone()
    return as_utc(value)


def as_utc(value: datetime | str) -> datetime:
    """``value``, a moment as the database's driver brings it."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
