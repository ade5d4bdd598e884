"""PostgreSQL's statements of a holder's verbs, by hand: grant, renew and release, of one row or of
many.

Each locks its rows (passing over those that someone else has locked), judges them, writes, notes
the events, and answers: one round trip where the portable form takes six. A row is judged as it is
locked, by its latest version; what follows finds it by its key. A statement that finds nothing to
do has changed nothing, and the portable form, which is the definition, then says why.

Conditions and columns that a model may change stand beside the portable ones, on their methods: see
``in_sql``. In all texts ``t`` is the row, ``{now}`` the database's clock, ``%(name)s`` a value.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from django.apps import apps
from django.core.exceptions import EmptyResultSet
from django.db import connections, models

from leasing.db.cached_cursors import fetch_all, new_cursor
from leasing.db.dialects import CHANNEL, durable, limit_waiting, refuse_transaction, waiting_limit
from leasing.db.routing import is_plain
from leasing.db.row_reader import Reader, reader
from leasing.db.statements import PLAIN, array_of, cached_statement
from leasing.functions import DbMicroseconds, DbNow
from leasing.runtime.clock import clock

Method = TypeVar("Method", bound=Callable[..., Any])
#: A condition, or the SQL of each column.
Text = str | Mapping[str, str]
#: A granted row, and what happened to it.
Granted = tuple[Any, str]

ROW = "t.{key} = %(key)s::{key_type} AND t.grant_id = %(grant)s::uuid"
#: Each with a grant of its own.
ROWS = (
    "t.{key} = ANY(%(keys)s::{key_type}[])"
    " AND t.grant_id = (%(grants)s::uuid[])[array_position(%(keys)s::{key_type}[], t.{key})]"
)
#: For the thousands that a keeper has, and compares again: a search in an array for each took long.
MANY_ROWS = "t.{key} = ANY(%(keys)s::{key_type}[]) AND t.grant_id = ANY(%(grants)s::uuid[])"
#: Of one row PostgreSQL knows that it is one, and enters the table by its key, however small that
#: is.
CHOSEN_ROW = "= (SELECT {key} FROM chosen)"
CHOSEN_ROWS = "= ANY(ARRAY(SELECT {key} FROM chosen))"

RENEW = """
WITH chosen AS MATERIALIZED (
    SELECT t.{key} FROM {table} AS t WHERE {which} AND {holding} AND {unexpired}
    ORDER BY t.{key} FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS t SET {columns} WHERE t.{key} {chosen}
RETURNING {answer}
"""

RELEASE = """
WITH chosen AS MATERIALIZED (
    SELECT t.{key} FROM {table} AS t WHERE {which} AND {holding} AND {unexpired}
    ORDER BY t.{key} FOR NO KEY UPDATE SKIP LOCKED
), freed AS (
    UPDATE {table} AS t SET {columns} WHERE t.{key} {chosen}
    RETURNING t.*
){noted}
SELECT {answer}{told} FROM freed AS w
"""
RELEASED = {"released_at": "{now}", "expires_at": "{now}"}
TOLD = """,
    CASE WHEN w.wanted_until > {now} THEN pg_notify('{channel}', {resource})::text END"""

GRANT = """
WITH chosen AS MATERIALIZED (
    {rows}
    FOR NO KEY UPDATE OF {alias} SKIP LOCKED
), granted AS (
    UPDATE {table} AS t SET grant_id = {grant}, {columns} WHERE t.{key} {chosen}
    RETURNING t.*
){noted}
SELECT {answer}, {expired} FROM {written} {order}
"""
BEFORE = "SELECT t.{key}, t.holder, t.grants, t.released_at, t.expires_at FROM {table} AS t"
ONE = "{before} WHERE t.{column} = %(value)s::{value_type} AND {available}"
#: The grant of a request has ended, and is not made twice.
ANOTHER_REQUEST = " AND (t.grant_id BETWEEN %(lowest)s::uuid AND %(highest)s::uuid) IS NOT TRUE"
ALL = """{before} WHERE t.{column} = ANY(%(values)s::{value_type}[]) AND {available}
    ORDER BY t.{column}"""
OR_NONE = " AND (SELECT count(*) FROM chosen) = %(count)s"
FIRST = "{before} WHERE {available} ORDER BY t.{key} LIMIT %(limit)s"
IN_THEIR_ORDER = "ORDER BY array_position(ARRAY(SELECT {key} FROM chosen), w.{key})"
HAD_EXPIRED = "c.grants > 0 AND c.released_at IS NULL"

NOTED = """, noted AS (
    INSERT INTO {ledger} (model, key, resource, kind, holder, previous_holder,
        previous_expired_at, grant_id, fencing_token, at, reason, actor)
    SELECT '{label}', w.{key}::text, {resource}, {kind}, w.holder, {previous_holder},
        {previous_expired_at}, w.grant_id, w.fencing_token, {now}, '', ''
    FROM {written}
)"""

#: The kinds of keys that PostgreSQL spells as ``str`` does. Not those derived from them, which may
#: be anything in Python.
_SPELLED_ALIKE = frozenset(
    {
        *(models.AutoField, models.BigAutoField, models.SmallAutoField),
        *(models.IntegerField, models.BigIntegerField, models.SmallIntegerField),
        *(models.PositiveIntegerField, models.PositiveBigIntegerField),
        *(models.PositiveSmallIntegerField, models.UUIDField, models.CharField),
        *(models.EmailField, models.SlugField, models.TextField, models.URLField),
    }
)


def in_sql(text: Text) -> Callable[[Method], Method]:
    """Give a method its SQL, which says the same. A condition is one text, in brackets where it has
    an OR; of what a verb writes each column has one, by its name in the table. Braces and "%" are
    doubled. ``%(name)s`` is an attribute of the terms of a grant.

    An override without SQL of its own has none: its rows take the portable form.
    """

    def given(method: Method) -> Method:
        method.sql = text  # type: ignore[attr-defined]
        return method

    return given


def sql_of(method: Any) -> Any:
    """Return the SQL of ``method``; None if it has none."""
    return getattr(method, "sql", None)


class Names(NamedTuple):
    """The names of a model in SQL."""

    table: str
    #: What the table is called in a statement that Django compiles: never with its schema.
    alias: str
    key: str
    #: The field of its keys: of the row that shares its key, if any.
    key_field: Any
    label: str
    #: ``lease_resource`` of a row ``w``; None if only Python knows it.
    resource: str | None
    #: False if its rows are in two tables.
    in_one_table: bool


@cache
def spelled(model: type[Any]) -> Names:
    """Return the names of ``model``."""
    meta: Any = model._meta
    key_field = meta.pk
    while key_field.remote_field:
        key_field = key_field.target_field
    key, label = quoted(meta.pk.column), model.leased_model()._meta.label_lower
    named: Any = apps.get_model("leasing", "Lease")
    resource = None
    if model.lease_resource is named.lease_resource:
        resource = "w.resource"
    elif (
        model.lease_resource is named.__base__.lease_resource and type(key_field) in _SPELLED_ALIKE
    ):
        resource = f"'{label}:' || w.{key}::text"
    concrete = meta.concrete_model._meta
    return Names(
        # As Django writes it: a name may bring its schema, as ``shop"."orders``.
        table='"{}"'.format(meta.db_table.strip('"')),
        alias=quoted(meta.db_table.strip('"').split('"."')[-1]),
        key=key,
        key_field=key_field,
        label=label,
        resource=resource,
        in_one_table=len(concrete.local_concrete_fields) == len(concrete.concrete_fields),
    )


def quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


@cache
def serves(using: str) -> bool:
    """Return True if these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"


def suits(rows: Any, *methods: Any, noted: bool = True) -> bool:
    """Return True if a statement can judge and write what these ``methods`` of ``rows`` say, and
    with ``noted`` their events."""
    if not serves(rows.db):
        return False
    names = spelled(rows.model)
    if not names.in_one_table or (noted and rows.keeps_events and names.resource is None):
        return False
    return all(map(sql_of, methods))


def can_renew(rows: Any) -> bool:
    """Return True if ``rows`` are renewed in one statement."""
    return suits(rows, rows.holding, rows.unexpired, rows.renewal, noted=False)


def can_release(rows: Any) -> bool:
    """Return True if ``rows`` are released in one statement."""
    return suits(rows, rows.holding, rows.unexpired)


def can_grant(rows: Any) -> bool:
    """Return True if ``rows`` are granted in one statement."""
    return suits(rows, rows.available, rows.granting)


# Renew and release


def renew_one(rows: Any, row: Any) -> bool:
    """Renew the grant of ``row``. Whether that was done; ``row`` stands as it was written then.
    Raises LeaseInTransaction."""
    connection = connections[rows.db]
    refuse_transaction(connection)
    return bool(_written(connection, rows, [row], RENEW, sql_of(rows.renewal)))


def release(connection: Any, rows: Any, held: list[Any], *, tell: bool) -> list[Any]:
    """Release those rows of ``held`` whose grant still lives, and with ``tell`` notify those who
    wait for them. Returns these, as they were written."""
    return _written(connection, rows, held, RELEASE, RELEASED, told=TOLD if tell else "")


def _written(
    connection: Any,
    rows: Any,
    held: list[Any],
    template: str,
    columns: Mapping[str, str],
    told: str = "",
) -> list[Any]:
    model, field = rows.model, spelled(rows.model).key_field
    several = len(held) != 1
    values: dict[str, Any]
    if several:
        key = attrgetter(model._meta.pk.attname)
        values = _of_rows(connection, field, map(key, held), [row.grant_id for row in held])
    else:
        (row,) = held
        values = {"key": _value(field, row.pk, connection), "grant": sent(row.grant_id)}

    def make() -> tuple[str, Reader]:
        alike = moments_of(columns) if several else frozenset()
        read = reader(model, rows.db, model.verb_columns - model.granted_columns, alike=alike)
        answer = read.sql("t") if template is RENEW else read.sql("w", "freed")
        which = ROWS if several else ROW
        return _of_holders(connection, rows, template, columns, which, answer, told), read

    about = (type(rows), model, rows.db, template, several)
    statement, read = cached_statement(about, make)
    return read.read(held, fetch_all(connection, statement, values))


def renew(rows: Any, grants: Mapping[Any, uuid.UUID], timeout: float) -> list[Any]:
    """Renew the rows whose key and grant are in ``grants`` and that nobody else has locked; returns
    these rows, with ``now``. No statement runs longer than ``timeout`` seconds, nor waits for a
    lock on the table.

    That limit and the update travel in one message, which PostgreSQL takes for a transaction.
    """
    model, using = rows.model, rows.db
    connection: Any = connections[using]

    def make() -> tuple[str, Reader]:
        read = reader(model, using, model.renewal_columns, more=("now",))
        columns, now = sql_of(rows.renewal), moment(DbNow, connection)
        answer = f"{read.sql('t')}, {now}"
        return _of_holders(connection, rows, RENEW, columns, MANY_ROWS, answer), read

    statement, read = cached_statement((type(rows), model, using, "renew many"), make)
    values = _of_rows(connection, spelled(model).key_field, grants, list(grants.values()))
    if connection.in_atomic_block or not _takes_several_statements(connection):
        with durable(using), new_cursor(connection) as cursor:
            limit_waiting(using, timeout)
            cursor.execute(statement, values)
            answers = cursor.fetchall()
    else:
        with new_cursor(connection) as cursor:
            cursor.execute(f"{waiting_limit(timeout)};{statement}", values)
            cursor.nextset()
            answers = cursor.fetchall()
    return read.rows(answers)


def _of_rows(
    connection: Any, field: Any, keys: Iterable[Any], grants: list[uuid.UUID]
) -> dict[str, Any]:
    """The values of ROWS and of MANY_ROWS."""
    return {"keys": _array(field, keys, connection), "grants": array_of(grants)}


def _of_holders(
    connection: Any,
    rows: Any,
    template: str,
    columns: Mapping[str, str],
    which: str,
    answer: str,
    told: str = "",
) -> str:
    """The statement that writes ``columns`` to rows whose grant still lives."""
    s = speller(connection, rows.model)
    return s(
        template,
        which=s(which),
        chosen=s(CHOSEN_ROW if which is ROW else CHOSEN_ROWS),
        holding=s(sql_of(rows.holding)),
        unexpired=s(sql_of(rows.unexpired)),
        columns=_assigned(s, columns),
        answer=answer,
        noted=_noted(s, rows, "freed AS w", "'released'", "''", "NULL"),
        told=s(told),
    )


def _takes_several_statements(connection: Any) -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    bound_by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return bool(is_psycopg3) and not bound_by_server


# Grant


def grant(rows: Any, terms: Any, column: str, value: Any) -> list[Granted]:
    """Grant the row of ``rows`` whose ``column`` is ``value``. Returns what was granted. Raises
    LeaseInTransaction."""
    named = rows.model._meta.pk if column == "pk" else _field(rows, column)
    field = spelled(rows.model).key_field if named.primary_key else named
    values = {"value": _value(field, value, connections[rows.db]), "grant": sent(terms.new_grant())}
    text = ONE
    if terms.request_id is not None:
        text += ANOTHER_REQUEST
        values["lowest"], values["highest"] = map(sent, terms.grants_of_request)
    if not is_plain(rows.query):
        free = rows.available().filter(**{column: value})
        if terms.request_id is not None:
            free = free.exclude(grant_id__range=terms.grants_of_request)
        return _granted(rows, terms, values, "one", free)
    return _granted(rows, terms, values, "one", text, named.column, field)


def claim(rows: Any, terms: Any, limit: int) -> list[Granted]:
    """``grant`` up to ``limit`` of ``rows``, in their order."""
    if is_plain(rows.query) and not rows.ordered:
        return _granted(rows, terms, {"limit": limit}, "some", FIRST)
    ordered = rows if rows.ordered else rows.order_by("pk")
    return _granted(rows, terms, {}, "some", ordered.available()[:limit])


def grant_all(rows: Any, terms: Any, column: str, values: list[str]) -> list[Granted]:
    """``grant`` the rows whose ``column`` is one of ``values``, in the order of these, or none."""
    field, connection = _field(rows, column), connections[rows.db]
    sent_values = {"values": _array(field, values, connection), "count": len(values)}
    granted = _granted(rows, terms, sent_values, "all", ALL, field.column, field)
    found = {getattr(row, field.attname): (row, kind) for row, kind in granted}
    return [found[value] for value in values] if found else []


def _granted(
    rows: Any,
    terms: Any,
    values: dict[str, Any],
    number: str,
    chosen: Any,
    column: str = "",
    field: Any = None,
) -> list[Granted]:
    """Grant what is ``chosen``: by a text of this module, or rows as Django's compiler spells them.

    Args:
        rows: The rows that may be granted.
        terms: The terms of the grants.
        values: The values of the text.
        number: "one", "some", or "all" or none of the values.
        chosen: The text, or a queryset.
        column: The name of the column of the text.
        field: The field whose values it has.
    """
    connection = connections[rows.db]
    refuse_transaction(connection)
    values |= {each.name: sent(getattr(terms, each.name)) for each in fields(terms)}
    if isinstance(chosen, str):

        def make() -> tuple[str, Reader]:
            s = speller(connection, rows.model)
            names = {}
            if field is not None:
                names = {"column": quoted(column), "value_type": _type(field, connection)}
            free = s(sql_of(rows.available))
            text = s(chosen, before=s(BEFORE), available=free, **names)
            return _granting(connection, rows, number, text, "t")

        about = (type(rows), rows.model, rows.db, number, chosen, column)
        statement, read = cached_statement(about, make)
        sent_at = clock()
        answers = fetch_all(connection, statement, values)
    else:
        try:
            text, filtered = _compiled(chosen)
        except EmptyResultSet:
            return []
        statement, read = _granting(connection, rows, number, text, spelled(rows.model).alias)
        sent_at = clock()
        with new_cursor(connection) as cursor:
            cursor.execute(statement, {**values, **filtered})
            answers = cursor.fetchall()
    granted = read.rows(answers)
    for row in granted:
        row.now, row.sent_at = row.acquired_at, sent_at
    return [
        (row, "acquired" if row.previous_expired_at is None else "taken_over") for row in granted
    ]


def _granting(
    connection: Any, rows: Any, number: str, chosen: str, alias: str
) -> tuple[str, Reader]:
    """The statement that grants what the text ``chosen`` brings, and what reads its answer."""
    s, alone, columns = speller(connection, rows.model), number == "one", sql_of(rows.granting)
    alike = frozenset() if alone else moments_of(columns)
    read = reader(rows.model, rows.db, more=("previous_expired_at",), alike=alike)
    expired = f"CASE WHEN {HAD_EXPIRED} THEN c.expires_at END"
    how = f"CASE WHEN {HAD_EXPIRED} THEN 'taken_over' ELSE 'acquired' END"
    written = s("granted AS w JOIN chosen AS c ON c.{key} = w.{key}")
    text = s(
        GRANT,
        rows=chosen,
        alias=alias,
        grant="%(grant)s::uuid" if alone else "gen_random_uuid()",
        columns=_assigned(s, columns),
        chosen=s(CHOSEN_ROW if alone else CHOSEN_ROWS) + (OR_NONE if number == "all" else ""),
        noted=_noted(s, rows, written, how, "c.holder", expired),
        answer=read.sql("w", "granted"),
        expired=expired,
        written=written,
        order=s(IN_THEIR_ORDER) if number == "some" else "",
    )
    return text, read


def _compiled(rows: Any) -> tuple[str, dict[str, Any]]:
    """What chooses ``rows``, as Django's compiler spells it, and its values."""
    term = rows.select_related(None).only("pk", "holder", "grants", "released_at", "expires_at")
    query: Any = term.query.chain()
    # The lock is written behind it. Django would write one inside of transaction blocks alone.
    query.select_for_update = False
    text, params = query.get_compiler(rows.db).as_sql()
    values = {f"filter_{number}": value for number, value in enumerate(params)}
    return text.replace("%%", "%%%%") % tuple(f"%({name})s" for name in values), values


# Parts of statements


def speller(connection: Any, model: Any) -> Callable[..., str]:
    """Return what puts names, the database's clock and other parts into the places of a text."""
    names = spelled(model)
    given = {
        **names._asdict(),
        "key_type": _type(names.key_field, connection),
        "now": moment(DbNow, connection),
        "microseconds": moment(DbMicroseconds, connection),
        "channel": CHANNEL,
        "ledger": quoted(apps.get_model("leasing", "LeaseEvent")._meta.db_table),
    }
    return lambda text, **parts: text.format_map({**given, **parts})


def moment(kind: Any, connection: Any) -> str:
    """Return the SQL of ``DbNow`` or ``DbMicroseconds``."""
    return str(kind().as_postgresql(None, connection)[0])


def moments_of(columns: Mapping[str, str]) -> frozenset[str]:
    """Return the names of those ``columns`` that are given a moment of the statement, equal in all
    rows that it writes: it is made of the clock, and of nothing in the row."""
    return frozenset(name for name, text in columns.items() if "{now}" in text and "t." not in text)


def _assigned(s: Callable[..., str], columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} = {s(text)}" for name, text in columns.items())


def _noted(
    s: Callable[..., str],
    rows: Any,
    written: str,
    kind: str,
    previous_holder: str,
    previous_expired_at: str,
) -> str:
    """The part of a statement that writes to the ledger, where these rows have one."""
    if not rows.keeps_events:
        return ""
    return s(
        NOTED,
        written=written,
        kind=kind,
        previous_holder=previous_holder,
        previous_expired_at=previous_expired_at,
    )


# Values, as text where that is how the driver is fast


def sent(value: Any) -> Any:
    """Return ``value`` of a term as the parameter of a statement."""
    kind = type(value)
    if kind is timedelta:
        return _interval(value)
    if kind is uuid.UUID:
        return value.hex
    if kind is dict:
        return json.dumps(value) if value else "{}"
    return value


@lru_cache(maxsize=64)
def _interval(value: timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _field(rows: Any, column: str) -> Any:
    return rows.model._meta.get_field(column)


def _type(field: Any, connection: Any) -> str:
    # The length of a text is left out: PostgreSQL would apply it to every element of an array,
    # again for each row, and would cut a name that is too long.
    return re.sub(r"^varchar\(\d+\)$", "varchar", str(field.rel_db_type(connection)))


def _value(field: Any, value: Any, connection: Any) -> Any:
    if type(field) in PLAIN:
        return sent(value)
    return field.get_db_prep_value(value, connection=connection)


def _array(field: Any, values: Iterable[Any], connection: Any) -> Any:
    if type(field) in PLAIN:
        return array_of(list(values))
    return array_of([field.get_db_prep_value(value, connection=connection) for value in values])
