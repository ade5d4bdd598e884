"""Each change of a lease, recorded by the database itself, in the transaction that makes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from django.db import connection

_TABLE = """
CREATE TABLE chaos_change (
    id {serial}, at {moment}, resource varchar(200), token bigint, holder varchar(200),
    expires_at {moment}, released_at {moment}
)
"""
_COLUMNS = "at, resource, token, holder, expires_at, released_at"
_TRIGGERS = {
    "postgresql": [
        """
        CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO chaos_change (at, resource, token, holder, expires_at, released_at) VALUES
            (clock_timestamp(), NEW.resource, NEW.fencing_token, NEW.holder, NEW.expires_at,
             NEW.released_at);
            RETURN NULL;
        END $$
        """,
        """
        CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE ON leasing_lease FOR EACH ROW
        WHEN (NEW.grants > 0) EXECUTE FUNCTION chaos_note()
        """,
    ],
    "sqlite": [
        f"""
        CREATE TRIGGER chaos_note_{event} AFTER {event} ON leasing_lease WHEN NEW.grants > 0 BEGIN
            INSERT INTO chaos_change ({_COLUMNS}) VALUES
            (strftime('%Y-%m-%d %H:%M:%f', 'now'), NEW.resource, NEW.fencing_token, NEW.holder,
             NEW.expires_at, NEW.released_at);
        END
        """
        for event in ("INSERT", "UPDATE")
    ],
}


class Change(NamedTuple):
    """The state of a lease after a change; times are seconds of the database's clock."""

    at: float
    resource: str
    token: int
    holder: str
    expires_at: float
    released_at: float | None


def record_changes() -> None:
    """Have each change of a lease recorded, in a table of its own."""
    is_postgres = connection.vendor == "postgresql"
    serial = "bigserial PRIMARY KEY" if is_postgres else "integer PRIMARY KEY AUTOINCREMENT"
    moment = "timestamptz" if is_postgres else "text"
    with connection.cursor() as cursor:
        cursor.execute(_TABLE.format(serial=serial, moment=moment))
        for statement in _TRIGGERS[connection.vendor]:
            cursor.execute(statement)


def changes() -> list[Change]:
    """Return all changes, of each lease in their order."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_COLUMNS} FROM chaos_change ORDER BY id")
        return [
            Change(
                _seconds(at),
                resource,
                token,
                holder,
                _seconds(expires),
                released and _seconds(released),
            )
            for at, resource, token, holder, expires, released in cursor.fetchall()
        ]


def _seconds(moment: datetime | str) -> float:
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return moment.timestamp()
