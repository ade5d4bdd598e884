"""Locks that PostgreSQL's sessions wait for."""

from __future__ import annotations

from django.db import connection


def someone_waits() -> bool:
    """Return True if a session of this database waits for a lock that another one has.

    The server serves the databases of other runs too, and a lock on a row names none: a session's
    database is read off the tables that it has locked. The lock on the queue of notifications is
    shared by all databases and soon granted.

    May be asked in a transaction too, where pg_stat_activity would go on giving its first answer.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks AS waiting"
            " WHERE NOT granted AND locktype <> 'object' AND EXISTS ("
            "SELECT 1 FROM pg_locks AS of_table JOIN pg_database ON pg_database.oid = database"
            " WHERE of_table.pid = waiting.pid AND datname = current_database())"
        )
        return bool(cursor.fetchone()[0])
