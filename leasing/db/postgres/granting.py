"""Acquire, claim and acquire_many in one statement."""

from __future__ import annotations

import os
from typing import Any

from django.db import connections, models
from django.db.models import F
from django.db.models.expressions import RawSQL
from django.db.models.lookups import Exact

from leasing.db.dialects import refuse_transaction
from leasing.db.postgres.rows import (
    NUMBER,
    TEXT,
    UUID,
    LeasableRows,
    Spelled,
    alias_of,
    compiled_select,
    compiled_update,
    execute,
    is_one_of,
    moments_of,
    noted_sql,
    pk_of,
    returned_sql,
)
from leasing.db.routing import is_plain
from leasing.db.row_reader import Reader, reader_after
from leasing.db.statements import (
    Marker,
    SentTerms,
    Several,
    Statement,
    cached_statement,
    columns_of,
    joined,
)
from leasing.runtime.clock import clock
from leasing.validation.terms import Terms

#: A granted row, and what happened to it.
Granted = tuple[Any, str]

#: The statement that grants, and the reader that makes rows of its answer.
Granting = tuple[Statement, Reader]

_HAD_EXPIRED = "c.grants > 0 AND c.released_at IS NULL"

_GRANT = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE OF {alias} SKIP LOCKED),
granted AS ({update} RETURNING {returned}){noted}
SELECT {columns}, CASE WHEN {had_expired} THEN c.expires_at END
FROM granted w JOIN chosen c ON c.{pk} = w.{pk}
"""

#: A grant of each row's own.
_NEW_GRANT = RawSQL("gen_random_uuid()", [], output_field=UUID)

#: Of the holder's clock, which is not in the statement.
MOMENT: models.Field[Any, Any] = models.FloatField()

#: Of the digit that is of the version of a UUID in two bits, and random in two.
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def grant(rows: LeasableRows, terms: Terms, column: str, value: Any) -> list[Granted] | None:
    """Grant the row of ``rows`` whose ``column`` is ``value``. Here and below: a list of what was
    granted; None when ``terms`` decide about columns in Python, which no compiled text can. Raises
    LeaseInTransaction."""
    sent, shape = SentTerms.of(terms)
    values = {**sent, "key": value, "grant": terms.new_grant()}
    if terms.request_id is not None:
        values["lowest"], values["highest"] = terms.grants_of_request

    def compile() -> Granting | None:
        meta: Any = rows.model._meta
        field = meta.pk if column == "pk" else meta.get_field(column)
        free = rows.available().filter(**{column: Marker("key", field)})
        if terms.request_id is not None:
            free = free.exclude(grant_id__range=[Marker("lowest", UUID), Marker("highest", UUID)])
        return _granting(rows, free, terms, Marker("grant", UUID), alone=True)

    return _granted(rows, ("one", column, shape), compile, values)


def claim(rows: LeasableRows, terms: Terms, limit: int) -> list[Granted] | None:
    """Grant up to ``limit`` of ``rows``, in their order."""
    grants = _new_grants(limit)
    sent, shape = SentTerms.of(terms)
    values = {**sent, "limit": limit, "grants": joined(grants)}

    def compile() -> Granting | None:
        return _granting(rows, rows.available(), terms, _grant_by_position(rows), limited=True)

    granted = _granted(rows, ("claim", shape), compile, values)
    return granted and _sorted(granted, grants)


def grant_all(
    rows: LeasableRows, terms: Terms, column: str, keys: list[str]
) -> list[Granted] | None:
    """Grant the rows whose ``column`` is one of ``keys``, in the order of these, or none. The
    grants are the database's random numbers: all are told, or the caller knows of none."""
    field = rows.model._meta.get_field(column)
    sent, shape = SentTerms.of(terms)
    values = {**sent, "keys": keys, "count": len(keys)}

    def compile() -> Granting | None:
        free = rows.available().filter(is_one_of(column, Several("keys", field))).order_by(column)
        return _granting(rows, free, terms, _NEW_GRANT, counted=True)

    granted = _granted(rows, ("all", column, shape), compile, values)
    if not granted:
        return granted
    found = {getattr(each[0], field.attname): each for each in granted}
    return [found[key] for key in keys]


def _granted(
    rows: LeasableRows, form: tuple[Any, ...], compile: Any, values: dict[str, Any]
) -> list[Granted] | None:
    connection = connections[rows.db]
    refuse_transaction(connection)
    if rows.is_kept or is_plain(rows.query):
        key = (type(rows), rows.model, rows.db, form)
        granting: Granting | None = cached_statement(key, compile)
    else:
        granting = compile()
    if granting is None:
        return None
    statement, every = granting
    sent_at = clock()
    answers = execute(connection, statement, values)
    granted = []
    for row in every.rows(answers, values | {"sent_at": sent_at}):
        row.now = row.acquired_at
        granted.append((row, "acquired" if row.previous_expired_at is None else "taken_over"))
    return granted


def _granting(
    rows: LeasableRows,
    free: LeasableRows,
    terms: Terms,
    grant_id: Any,
    *,
    alone: bool = False,
    limited: bool = False,
    counted: bool = False,
) -> Granting | None:
    """The statement that grants what is chosen of ``free``, with ``grant_id``; and what reads its
    answer. ``alone``: it is one row at most."""
    target = rows._everything()  # what is chosen is locked, and was available when it was
    if counted:
        count: Any = RawSQL("SELECT count(*) FROM chosen", [], output_field=NUMBER)
        target = target.filter(Exact(count, Marker("count", NUMBER)))
    columns = columns_of(rows.granting, terms)
    if columns is None:
        return None
    term = free.select_related(None).only("pk", "holder", "grants", "released_at", "expires_at")
    chosen_sql, chosen_params = compiled_select(term)
    if limited:
        chosen_sql += " LIMIT %s"
        chosen_params = (*chosen_params, Marker("limit", NUMBER))
    pk = pk_of(rows)
    expired = _HAD_EXPIRED
    noted = noted_sql(
        rows,
        kind=f"CASE WHEN {expired} THEN 'taken_over' ELSE 'acquired' END",
        previous_holder="c.holder",
        previous_expired_at=f"CASE WHEN {expired} THEN c.expires_at END",
        written=f"granted w JOIN chosen c ON c.{pk} = w.{pk}",
    )
    columns |= {"grant_id": grant_id}
    update_sql, update_params = compiled_update(target, columns, alone=alone)
    every = reader_after(
        rows.model,
        rows.db,
        columns,
        more=("previous_expired_at",),
        alike=frozenset() if alone else moments_of(columns),
        sent_at=Marker("sent_at", MOMENT),
    )
    text = _GRANT.format(
        chosen=chosen_sql,
        alias=alias_of(rows),
        update=update_sql,
        returned=returned_sql(rows, every),
        noted=noted,
        columns=every.sql("w", "granted"),
        had_expired=expired,
        pk=pk,
    )
    params = (*chosen_params, *update_params)
    is_kept = is_plain(rows.query)
    return Statement(text, params, connections[rows.db], is_kept=is_kept), every


def _grant_by_position(rows: LeasableRows) -> Spelled:
    """Each chosen row's own of ``grants``."""
    text = f"({{}}::uuid[])[array_position(ARRAY(SELECT {pk_of(rows)} FROM chosen), {{}})]"
    return Spelled(text, Marker("grants", TEXT), F("pk"), output_field=UUID)


def _new_grants(count: int) -> list[str]:
    """As many of what ``uuid4`` makes, which asks the system for each; in hexadecimal digits, for
    the rows bring the objects."""
    noise = os.urandom(16 * count).hex()
    each = [noise[n : n + 32] for n in range(0, len(noise), 32)]
    return [f"{n[:12]}4{n[13:16]}{_VARIANT[n[16]]}{n[17:]}" for n in each]


def _sorted(granted: list[Granted], grants: list[str]) -> list[Granted]:
    places = {int(grant, 16): place for place, grant in enumerate(grants)}
    return sorted(granted, key=lambda each: places[each[0].grant_id.int])
