"""PostgreSQL's one-statement form of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from leasing.db.statements import array_of
from tasks.querysets.base import TaskRows
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.sql.statements import (
    MARKS,
    MICROSECONDS,
    cached_statement,
    inlined,
    plan,
    table_of,
    update_of,
)
from tasks.querysets.transitions import completing

_COMPLETE = """
WITH mine AS MATERIALIZED ({locked} FOR NO KEY UPDATE)
{update} RETURNING {table}.id, {moment}
"""
#: The grants come as bytes, sixteen of each: half a microsecond each less than as text.
_GIVEN = """{table}.id = ANY({ids}::bigint[])
    AND uuid_send({table}.grant_id) = substring({grants}::bytea FROM 16 * {place} - 15 FOR 16)"""
#: The locked rows run under their grants, and nobody else writes to them: not asked again.
_LOCKED = "{table}.id = ANY(ARRAY(SELECT id FROM mine))"
#: The position of a row's key among the keys, which are in order: a join takes longer.
_PLACE = "width_bucket({table}.id, {ids}::bigint[])"
#: An output of nothing is a null, as in the portable form.
_OUTPUT = "NULLIF({outputs}::jsonb -> ({place} - 1), 'null'::jsonb)"


def complete(rows: TaskRows, mine: Sequence[ClaimedTask], outputs: str) -> dict[int, int]:
    """End well each task of ``mine``, which come in the order of their keys and none twice, that
    its grant still holds. ``outputs`` is a list of theirs in JSON. Returns when each that has ended
    did, in microseconds since 1970, by their keys.

    The rows are locked in the order of their keys before any is updated.
    """
    given = {
        "ids": array_of([each.id for each in mine]),
        "grants": bytes.fromhex("".join([each.grant for each in mine]).replace("-", "")),
        "outputs": outputs,
    }
    statement = cached_statement("complete", rows._everything(), _complete_statement)
    with connections[rows.db].cursor() as cursor:
        cursor.execute(statement + plan(), given)
        return dict(cursor.fetchall())


def _complete_statement(rows: TaskRows) -> str:
    table = table_of(rows)
    marks = {"table": table, "place": _PLACE.format(table=table, **MARKS), **MARKS}
    given: Any = RawSQL(_GIVEN.format(**marks), [], output_field=BooleanField())
    columns = {**completing(), "task_output": RawSQL(_OUTPUT.format(**marks), [])}
    update = update_of(rows, _LOCKED.format(**marks), columns)
    locked = rows.holding().filter(given).order_by("pk").only("pk")
    moment = MICROSECONDS.format(moment=f"{table}.processed_at")
    found = inlined(rows, locked.query)
    return _COMPLETE.format(locked=found, update=update, table=table, moment=moment)
