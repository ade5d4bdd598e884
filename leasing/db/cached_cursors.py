"""Cursors for statements that are sent often: each stays with its connection.

A cursor finds out with its first statement how the driver sends the parameters and reads the
columns, and Django makes each with its wrappers: together that takes longer than to send the
statement. One that sends the same again knows. They are Django's cursors, so whatever wraps their
statements does; but they read moments by the driver's own loader, which Django replaces by a slower
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

from django.db.backends.utils import CursorWrapper

#: The attribute of a connection that has them: the open connection of the driver's, the thread that
#: was seen to be its own, and its cursors by statement.
ATTRIBUTE = "_leasing_cursors"
NONE_YET: tuple[Any, int, dict[str, Any]] = (None, 0, {})
#: Cursors that a connection may have, and the rows of the latest answer of each.
MAX_CURSORS, MAX_ROWS = 50, 1


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
    rows = (cursor.cursor if type(cursor) is CursorWrapper else cursor).fetchall()
    if len(rows) <= MAX_ROWS and len(cursors) < MAX_CURSORS:
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
