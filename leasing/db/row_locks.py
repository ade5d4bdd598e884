"""Sessions that have locked rows, as far as PostgreSQL shows them to the role."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, models, transaction

from leasing.humanize import Moment

#: A renewal or a recovery locks a row for less time than these seconds: it is in nobody's way.
SHORT = 3
# A row has the number of the latest transaction that locked it, which has a lock on its own number
# until it ends. Some numbers are in no such lock: that of several transactions that have locked the
# row together, and that of a savepoint that was released. Nothing is known of these then.
_QUERY = """
SELECT leased.{key}, lock.pid, session.usename, session.application_name, session.xact_start
FROM {table} AS leased
JOIN pg_locks AS lock ON lock.locktype = 'transactionid' AND lock.transactionid = leased.xmax
 AND lock.mode = 'ExclusiveLock' AND lock.granted AND lock.pid <> pg_backend_pid()
LEFT JOIN pg_stat_activity AS session ON session.pid = lock.pid
WHERE leased.{key} IN ({rows})
 AND coalesce(session.xact_start, '-infinity') < clock_timestamp() - interval '{short} seconds'
"""


class RowLock(NamedTuple):
    """The session whose open transaction has locked a row.

    ``since`` is the begin of the transaction. Of the sessions of other roles PostgreSQL shows it
    only to a role that has pg_read_all_stats.
    """

    pid: int
    user: str | None
    application: str | None
    since: datetime | None

    @property
    def parts(self) -> tuple[str | Moment, ...]:
        """Return the words for it, with the moment: the parts of a ``Sentence``."""
        known = {"pid": self.pid, "user": self.user, "application": self.application}
        named = ", ".join(f"{name} {value}" for name, value in known.items() if value)
        words = f"another session’s transaction ({named})"
        return (words, ", which began ", Moment(self.since)) if self.since else (words,)

    @property
    def remedy(self) -> str:
        """Return how to end the session, and who has to be asked."""
        whose = f"whoever runs {self.application}" if self.application else "whose session it is"
        return (
            f"Ask {whose} to commit or roll back. To end the session, run this in psql on the same "
            f"database, as the role {self.user or 'of the session'} or one with pg_signal_backend: "
            f"SELECT pg_terminate_backend({self.pid});"
        )


def row_locks(rows: models.QuerySet[Any]) -> dict[Any, RowLock]:
    """Return the locks on those of ``rows`` that another session has locked for some seconds, by
    primary key, in one statement. Only PostgreSQL has row locks, and shows them: none if it refuses
    that to the role, or the statement runs for too long."""
    connection = connections[rows.db]
    if connection.vendor != "postgresql":
        return {}
    quote, meta = connection.ops.quote_name, rows.model._meta
    keys, params = rows.values("pk").query.get_compiler(rows.db).as_sql()
    query = _QUERY.format(
        key=quote(meta.pk_fields[0].column), table=quote(meta.db_table), rows=keys, short=SHORT
    )
    try:
        with transaction.atomic(using=rows.db), connection.cursor() as cursor:
            cursor.execute(query, params)
            return {key: RowLock(*lock) for key, *lock in cursor.fetchall()}
    except DatabaseError:
        return {}
