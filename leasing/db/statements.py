"""The common part of statements by hand: they are kept once made, their values travel as text where
that is how the driver is fast, and cursors for those that are sent often stay with the connection.

A cursor finds out with its first statement how the driver sends the parameters and reads the
columns, and Django makes each with its wrappers: together that takes longer than to send the
statement. One that sends the same again knows. They are Django's cursors, so whatever wraps their
statements does; but they read moments by the driver's own loader, which Django replaces by a slower
one.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from operator import attrgetter
from threading import get_ident
from typing import Any, TypeVar

from django.db import models
from django.db.backends.utils import CursorWrapper

from leasing.runtime import clock

#: Fields whose values PostgreSQL's drivers take unchanged; values of others are prepared at each
#: call.
PLAIN = frozenset(
    {
        models.AutoField,
        models.BigAutoField,
        models.BigIntegerField,
        models.CharField,
        models.DurationField,
        models.IntegerField,
        models.PositiveIntegerField,
        models.SmallIntegerField,
        models.UUIDField,
    }
)

_cache: dict[Hashable, Any] = {}

Made = TypeVar("Made")


def cached_statement(key: Hashable, make: Callable[[], Made]) -> Made:
    """Return the result of the first ``make`` that was called under ``key``."""
    if clock.stand_in is not None:
        return make()  # the time of a test stands in the text
    try:
        made: Made = _cache[key]
    except KeyError:
        made = _cache[key] = make()
    return made


# Parts of texts


def quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def table_of(model: Any) -> str:
    """Return the name of the table of ``model`` as Django writes it: it may bring its schema, as
    ``shop"."orders``."""
    return '"{}"'.format(model._meta.db_table.strip('"'))


def moment(kind: Any, connection: Any) -> str:
    """Return the SQL of ``DbNow`` or ``DbMicroseconds``."""
    return str(kind().as_postgresql(None, connection)[0])


def own_field(field: Any) -> Any:
    """Return ``field``, or of a key that is another row's the field of that."""
    while field.remote_field:
        field = field.target_field
    return field


def type_of(field: Any, connection: Any) -> str:
    # The length of a text is left out: PostgreSQL would apply it to every element of an array,
    # again for each row, and would cut a name that is too long.
    return re.sub(r"^varchar\(\d+\)$", "varchar", str(field.rel_db_type(connection)))


# Values


@lru_cache(maxsize=64)
def _interval(value: timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value) if value else "{}"  # as most are


def sent(field: Any, value: Any, connection: Any, **values: Any) -> dict[str, Any]:
    """Return the parameters of a statement: ``value``, of ``field`` (None: of none), and others, by
    their names."""
    if field is not None and type(field) not in PLAIN:
        value = field.get_db_prep_value(value, connection=connection)
    values["value"] = value
    return {
        name: AS_TEXT[type(value)](value) if type(value) in AS_TEXT else value
        for name, value in values.items()
    }


def array_as(field: Any, values: Iterable[Any], connection: Any) -> Any:
    """Return ``values`` of ``field`` as one parameter, an array."""
    if type(field) in PLAIN:
        return array_of(list(values))
    return array_of([field.get_db_prep_value(value, connection=connection) for value in values])


def array_of(values: list[Any]) -> Any:
    """``values`` as the text of an array, which the driver would take many times as long to make
    of a list; but for kinds whose text only it knows."""
    if not values:
        return "{}"
    kind = type(values[0])
    if kind is uuid.UUID:
        digits = b"".join([value.int.to_bytes(16) for value in values]).hex()
        return joined([digits[n : n + 32] for n in range(0, len(digits), 32)])
    if kind is int:
        return joined(map(str, values))
    if kind is str:
        text = '","'.join(values)
        if "\\" not in text and text.count('"') == 2 * len(values) - 2:
            return f'{{"{text}"}}'  # as most names are
        escaped = [value.replace("\\", r"\\").replace('"', r"\"") for value in values]
        return joined([f'"{value}"' for value in escaped])
    return values


def joined(values: Iterable[str]) -> str:
    """``values``, which need no quotes, as the text of an array."""
    return "{" + ",".join(values) + "}"


#: Makes the text of a value, for kinds that the driver would take long over.
AS_TEXT: Mapping[type, Callable[[Any], Any]] = {
    timedelta: _interval,
    uuid.UUID: attrgetter("hex"),
    dict: _json,
    list: array_of,
}


# Cursors

#: The attribute of a connection that has them: the open connection of the driver's, the thread that
#: was seen to be its own, and its cursors by statement.
ATTRIBUTE = "_leasing_cursors"
NONE_YET: tuple[Any, int, dict[str, Any]] = (None, 0, {})
#: Cursors that a connection may have. Each keeps the values that it sent last, so outputs and data
#: of tasks with more than LONG_VALUE characters are sent ``once``.
MAX_CURSORS, LONG_VALUE = 50, 100_000


def fetch_all(
    connection: Any,
    sql: str,
    params: Sequence[Any] | Mapping[str, Any] | None,
    known_as: str = "",
    *,
    once: bool = False,
) -> list[Any]:
    """Send ``sql``, a text that is kept, to PostgreSQL, and return the rows of its answer. Texts
    that follow one another are ``known_as`` one: they share its cursor. None stays of what is sent
    ``once``."""
    if once or connection.queries_logged or "cursor" in connection.__dict__:
        # Somebody looks at each cursor: Django itself, or a tool that has replaced what makes them.
        with new_cursor(connection) as cursor:
            cursor.execute(sql, params)
            rows: list[Any] = cursor.fetchall()
        return rows
    # As Django does before it makes one.
    if connection.health_check_enabled:
        connection.close_if_health_check_failed()
    connection.ensure_connection()
    raw, thread = connection.connection, get_ident()
    of, owner, cursors = connection.__dict__.get(ATTRIBUTE) or NONE_YET
    if of is not raw or owner != thread:
        connection.validate_thread_sharing()
        cursors = cursors if of is raw else {}
        connection.__dict__[ATTRIBUTE] = raw, thread, cursors
    # Nobody else has it meanwhile: what wraps the statement may send another like it.
    key = known_as or sql
    cursor = cursors.pop(key, None) or new_cursor(connection)
    cursor.execute(sql, params)
    # The driver has read them by now: there is no error for Django's wrapper to translate.
    driven = cursor.cursor if type(cursor) is CursorWrapper else cursor
    rows = driven.fetchall()
    # Only psycopg 3 has this attribute; cursors of psycopg 2 are not kept. A kept cursor would keep
    # its answer, with every payload in it. Loaders have copied what they read.
    answer = getattr(driven, "pgresult", None)
    if answer is not None and len(cursors) < MAX_CURSORS:
        answer.clear()
        cursors[key] = cursor
    return rows


def new_cursor(connection: Any) -> Any:
    """Return a cursor of Django's that reads moments fast."""
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    cursor = connection.cursor()
    if is_psycopg3 and connection.timezone_name == "UTC":
        from psycopg.types.datetime import TimestamptzLoader

        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
    return cursor
