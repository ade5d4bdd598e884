"""PostgreSQL's one-statement form of giving back what no handler was called for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from leasing.db.statements import array_of, joined
from tasks.querysets.base import CANCEL_REQUESTED, TaskRows
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.sql.statements import MARKS, cached_statement, inlined, table_of, update_of
from tasks.querysets.transitions import refunding

_GIVE_BACK = """
WITH mine AS MATERIALIZED ({locked} FOR NO KEY UPDATE)
{update} RETURNING {table}.id"""
_GIVEN = """{table}.id = ANY({ids}::bigint[]) AND ({table}.id, {table}.grant_id) IN (
    SELECT * FROM unnest({ids}::bigint[], {grants}::uuid[])
)"""
#: The locked rows run under their grants, and nobody else writes to them: not asked again.
_LOCKED = "{table}.id = ANY(ARRAY(SELECT id FROM mine))"


def give_back(rows: TaskRows, mine: Sequence[ClaimedTask]) -> set[int]:
    """Set each of ``mine`` ready again that its grant still holds and nobody asked to cancel.
    Returns their keys. The rows are locked in the order of their keys before any is updated."""
    given = {
        "ids": array_of([each.id for each in mine]),
        "grants": joined([each.grant for each in mine]),
    }
    statement = cached_statement("give back", rows._everything(), _statement)
    with connections[rows.db].cursor() as cursor:
        cursor.execute(statement, given)
        return {key for (key,) in cursor.fetchall()}


def _statement(rows: TaskRows) -> str:
    table = table_of(rows)
    marks = {"table": table, **MARKS}
    given: Any = RawSQL(_GIVEN.format(**marks), [], output_field=BooleanField())
    # Of one that is to be cancelled others hear.
    mine = rows.holding().filter(given).exclude(CANCEL_REQUESTED)
    locked = inlined(rows, mine.order_by("pk").only("pk").query)
    update = update_of(rows, _LOCKED.format(**marks), refunding(timedelta(0)))
    return _GIVE_BACK.format(locked=locked, update=update, table=table)
