"""What PostgreSQL's sessions wait for."""

from __future__ import annotations

from django.db import connection


def someone_waits() -> bool:
    """Whether a session waits for a lock that another one has.

    May be asked in a transaction too, where pg_stat_activity would go on giving its first
    answer.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])
