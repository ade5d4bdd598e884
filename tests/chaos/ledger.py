"""A record of tasks by the test's own triggers: each change, in the transaction that makes it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from tests.chaos.history import now

ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Change:
    """A task that was stored (``was`` is None), or a change of its state; ``at`` is in nanoseconds
    of the histories' clock."""

    at: int
    task: int
    tag: str | None
    name: str
    was: str | None
    status: str
    attempts_was: int | None
    attempts: int
    max_attempts: int
    token: int
    holder: str
    #: The moment from which on it may be claimed, and that of its end, before and now.
    due: int
    processed_was: int | None
    processed: int | None
    unique_key: str | None
    limit_key: str
    limit: int | None
    output: Any = None

    @property
    def is_stored(self) -> bool:
        return self.was is None

    @property
    def is_end(self) -> bool:
        return self.status in ENDED and (
            self.was not in ENDED or self.processed != self.processed_was
        )

    @property
    def is_refund(self) -> bool:
        """Return True if an attempt was uncounted: its task was given back."""
        return self.attempts_was is not None and self.attempts < self.attempts_was


@dataclass(frozen=True)
class Attempt:
    """An attempt that did not succeed."""

    task: int
    token: int
    holder: str
    outcome: str
    error: str = ""
    #: The verb of its late write that was refused; empty if there was none.
    refused: str = ""


@dataclass(frozen=True)
class Slot:
    """A moment of a schedule that was served, in microseconds since 1970."""

    schedule: str
    at: int
    task: int | None
    skipped: bool = False


@dataclass(frozen=True)
class TaskFacts:
    """What the database has of tasks at the end; changes are in the order of their commits as far
    as one task, unique key or slot goes."""

    changes: Sequence[Change] = ()
    attempts: Sequence[Attempt] = ()
    slots: Sequence[Slot] = field(default=())


_SECONDS = {
    "postgresql": "extract(epoch FROM {})",
    "sqlite": "(julianday({}) - 2440587.5) * 86400.0",
}
_NOW = {"postgresql": "clock_timestamp()", "sqlite": "'now'"}
_TAG = {"postgresql": "{}.task_data->>'tag'", "sqlite": "json_extract({}.task_data, '$.tag')"}
#: A change of any of these is recorded; heartbeats are not.
_WATCHED = ("status", "attempts", "fencing_token", "unique_key", "slot", "processed_at")
_TABLE = (
    "CREATE TABLE chaos_task (seq {serial}, at {double}, task bigint, tag text, name text,"
    " was text, status text, attempts_was int, attempts int, max_attempts int, token bigint,"
    " holder text, due {double}, processed_was {double}, processed {double}, unique_key text,"
    ' limit_key text, "limit" int, output {json})'
)


def install() -> None:
    """Create the ledger and its triggers, on the default database."""
    with connection.cursor() as cursor:
        for statement in _statements(connection.vendor):
            cursor.execute(statement)


def _statements(vendor: str) -> list[str]:
    added = _values(vendor, was=False)
    changed = _values(vendor, was=True)
    table = "leasing_tasks_task"
    if vendor == "sqlite":
        serial, differ = "integer PRIMARY KEY AUTOINCREMENT", "IS NOT"
        types = {"serial": serial, "double": "double", "json": "text"}
        body = "BEGIN INSERT INTO chaos_task VALUES ({}); END"
    else:
        serial, differ = "bigserial PRIMARY KEY", "IS DISTINCT FROM"
        types = {"serial": serial, "double": "double precision", "json": "jsonb"}
        body = "EXECUTE FUNCTION {}()"
    when = " OR ".join(f"OLD.{name} {differ} NEW.{name}" for name in _WATCHED)
    statements = [_TABLE.format(**types)]
    for name, values, event, condition in (
        ("chaos_task_added", added, "INSERT", ""),
        ("chaos_taskd", changed, "UPDATE", f"WHEN ({when})"),
    ):
        if vendor == "postgresql":
            statements.append(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" INSERT INTO chaos_task VALUES ({values}); RETURN NULL; END $$"
            )
        does = body.format(values if vendor == "sqlite" else name)
        statements.append(
            f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {condition} {does}"
        )
    return statements


def _values(vendor: str, *, was: bool) -> str:
    seconds, old = _SECONDS[vendor], "OLD.{}" if was else "NULL"
    seq = "nextval('chaos_task_seq_seq')" if vendor == "postgresql" else "NULL"
    processed_was = seconds.format("OLD.processed_at") if was else "NULL"
    return ", ".join(
        [
            seq,
            seconds.format(_NOW[vendor]),
            "NEW.id",
            _TAG[vendor].format("NEW"),
            "NEW.name",
            old.format("status"),
            "NEW.status",
            old.format("attempts"),
            *(f"NEW.{name}" for name in ("attempts", "max_attempts", "fencing_token", "holder")),
            seconds.format("NEW.scheduled_at"),
            processed_was,
            seconds.format("NEW.processed_at"),
            *(f"NEW.{name}" for name in ("unique_key", "concurrency_key", "concurrency_limit")),
            "NEW.task_output",
        ]
    )


def read() -> TaskFacts:
    """Return what the ledger and the tables of the default database have."""
    from tasks.models import ScheduleSlot, TaskAttempt

    ahead = now() - time.time_ns()

    def moment(seconds: float | None) -> int | None:
        return None if seconds is None else int(seconds * 1e9) + ahead

    def change(**row: Any) -> Change:
        moments = {name: moment(row[name]) for name in ("at", "due", "processed_was", "processed")}
        output = row["output"]
        parsed = json.loads(output) if isinstance(output, str) else output
        return Change(**{**row, **moments, "output": parsed})

    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM chaos_task WHERE name LIKE 'chaos.%' ORDER BY seq")
        names = [column[0] for column in cursor.description[1:]]
        changes = [change(**dict(zip(names, row[1:], strict=True))) for row in cursor.fetchall()]
    attempts = TaskAttempt.objects.order_by("id").values_list(
        "task_id", "fencing_token", "holder", "outcome", "error", "refused_verb"
    )
    slots = ScheduleSlot.objects.order_by("at").values_list(
        "schedule__name", "at", "task_id", "skipped"
    )
    return TaskFacts(
        changes,
        [Attempt(*row) for row in attempts],
        [
            Slot(name, round(at.timestamp() * 1e6), task, skipped)
            for name, at, task, skipped in slots
        ],
    )
