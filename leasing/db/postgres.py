"""PostgreSQL's one-statement forms of acquire, claim, renew and release, for rows of any model.

Each locks its rows (passing over those that someone else has locked), judges, writes, notes the
events, and answers: one round trip where the portable form takes six. The conditions and the
columns are the portable form's own, compiled by Django, so there is one definition of each. A
statement that finds nothing to do has changed nothing, and the portable form then says why.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from datetime import UTC
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

from django.apps import apps
from django.db import connections, models
from django.db.models import F, Func, QuerySet, UUIDField, sql
from django.db.models.expressions import RawSQL
from django.db.models.lookups import Exact

from leasing.db.dialects import durable, limit_waiting, waiting_limit
from leasing.db.notifications import CHANNEL
from leasing.db.row_reader import Reader, reader, reader_after
from leasing.db.statements import (
    Marker,
    Several,
    Statement,
    columns_of,
    joined,
    kept,
    shape_of,
    values_of,
)
from leasing.functions import DbNow
from leasing.validation.terms import Terms


class LeasableRows(Protocol):
    """What is asked of a ``LeasableQuerySet``, which stands in a layer above: the portable forms,
    whose conditions and columns are compiled here."""

    keeps_events: bool

    @property
    def db(self) -> str: ...

    @property
    def model(self) -> Any: ...

    @property
    def query(self) -> Any: ...

    def only(self, *fields: str) -> Any: ...

    def select_related(self, *fields: Any) -> Any: ...

    def available(self) -> Any: ...

    def granting(self, terms: Terms) -> dict[str, Any]: ...

    def renewal(self) -> dict[str, Any]: ...

    def _everything(self) -> Any: ...

    def _of_grant(self, row: Any) -> Any: ...


#: A granted row, and what happened to it.
Granted = tuple[Any, str]
#: What grants, and what makes rows of its answer.
Granting = tuple[Statement, Reader]

_NOTED = """,
noted AS (
    INSERT INTO {ledger} (model, key, resource, kind, holder, previous_holder,
        previous_expired_at, grant_id, fencing_token, at, reason, actor)
    SELECT '{label}', w.{pk}::text, {resource}, {kind}, w.holder, {previous_holder},
        {previous_expired_at}, w.grant_id, w.fencing_token, {now}, '', ''
    FROM {written}
)"""

_HAD_EXPIRED = "c.grants > 0 AND c.released_at IS NULL"

_GRANT = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE OF {alias} SKIP LOCKED),
granted AS ({update} RETURNING {table}.*){noted}
SELECT {columns}, CASE WHEN {had_expired} THEN c.expires_at END
FROM granted w JOIN chosen c ON c.{pk} = w.{pk}
"""

_RENEW_ONE = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE SKIP LOCKED)
{update} RETURNING {columns}
"""

_RELEASE = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE SKIP LOCKED),
freed AS ({update} RETURNING {table}.*){noted}
SELECT {columns} FROM freed w
"""

_RELEASE_AND_TELL = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE SKIP LOCKED),
freed AS ({update} RETURNING {table}.*){noted},
told AS (
    SELECT pg_notify('{channel}', {resource}) FROM freed w WHERE w.wanted_until > {now}
)
SELECT {columns}, (SELECT count(*) FROM told) FROM freed w
"""

_RENEW = """
WITH chosen AS MATERIALIZED (
    SELECT {pk} FROM {table} WHERE {pk} = ANY({keys}) AND grant_id = ANY({grants})
    ORDER BY {pk} FOR NO KEY UPDATE SKIP LOCKED
)
{update} RETURNING {columns}, {now} AT TIME ZONE 'UTC'
"""

#: Of the digit that is of the version of a UUID in two bits, and random in two.
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}

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

_UUID: models.Field[Any, Any] = UUIDField()
_NUMBER: models.Field[Any, Any] = models.BigIntegerField()


# What these forms are for


def serves(using: str) -> bool:
    """Whether these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"


@cache
def suits(model: type[models.Model]) -> bool:
    """Whether the rows of ``model`` are in one table, with a key of one column."""
    concrete: Any = model._meta.concrete_model
    fields = concrete._meta
    return len(fields.local_concrete_fields) == len(fields.concrete_fields) and bool(
        fields.pk.column
    )


@cache
def resource_of(model: type[Any]) -> str | None:
    """``lease_resource`` of a row ``w``, in SQL; None when only Python knows it."""
    named: Any = apps.get_model("leasing", "Lease")
    if model.lease_resource is named.lease_resource:
        return "w.resource"
    pk: Any = model._meta.pk
    is_told = model.lease_resource is named.__base__.lease_resource
    if not is_told or type(_key_field(model)) not in _SPELLED_ALIKE:
        return None
    return f"'{model.leased_model()._meta.label_lower}:' || w.{_quoted(pk.column)}::text"


def notes(rows: LeasableRows) -> bool:
    """Whether the events of ``rows`` can be noted by the statement that makes them."""
    model: Any = rows.model
    return not rows.keeps_events or resource_of(model) is not None


# Granting


def grant(rows: LeasableRows, terms: Terms, column: str, value: Any) -> list[Granted] | None:
    """Grant the row of ``rows`` whose ``column`` is ``value``. Here and below: a list of what was
    granted; None when ``terms`` decide about columns in Python, which no compiled text can."""
    field: Any = rows.model._meta.pk if column == "pk" else rows.model._meta.get_field(column)
    values = {**values_of(terms), "key": value, "grant": uuid.uuid4()}

    def compile() -> Granting | None:
        free = rows.available().filter(**{column: Marker("key", field)})
        return _granting(rows, free, terms, Marker("grant", _UUID), alone=True)

    return _granted(rows, ("one", column), compile, values)


def claim(rows: LeasableRows, terms: Terms, limit: int) -> list[Granted] | None:
    """Grant up to ``limit`` of ``rows``, in their order."""
    grants = _new_grants(limit)
    values = {**values_of(terms), "limit": limit, "grants": joined(grants)}

    def compile() -> Granting | None:
        return _granting(rows, rows.available(), terms, _grant_by_place(rows), limited=True)

    granted = _granted(rows, ("claim",), compile, values)
    return granted and _sorted(granted, grants)


def grant_all(
    rows: LeasableRows, terms: Terms, column: str, keys: list[str]
) -> list[Granted] | None:
    """Grant the rows whose ``column`` is one of ``keys``, in the order of that, or none."""
    field = rows.model._meta.get_field(column)
    grants = _new_grants(len(keys))
    values = {
        **values_of(terms),
        "keys": keys,
        "count": len(keys),
        "grants": joined(grants),
    }

    def compile() -> Granting | None:
        free = rows.available().filter(_is_one_of(column, Several("keys", field))).order_by(column)
        return _granting(rows, free, terms, _grant_by_place(rows), counted=True)

    granted = _granted(rows, ("all", column), compile, values)
    return granted and _sorted(granted, grants)


def _granted(
    rows: LeasableRows, form: tuple[str, ...], compile: Any, values: dict[str, Any]
) -> list[Granted] | None:
    if _is_plain(rows.query):
        key = (type(rows), rows.model, rows.db, form, shape_of(values))
        granting: Granting | None = kept(key, compile)
    else:
        granting = compile()
    if granting is None:
        return None
    statement, every = granting
    answers = _execute(rows.db, statement, values)
    granted = []
    for row, answer in zip(every.rows(answers, values), answers, strict=True):
        row.now = row.acquired_at
        row.previous_expired_at = answer[-1]
        granted.append((row, "acquired" if answer[-1] is None else "taken_over"))
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
    target = rows._everything().available()
    if counted:
        count: Any = RawSQL("SELECT count(*) FROM chosen", [], output_field=_NUMBER)
        target = target.filter(Exact(count, Marker("count", _NUMBER)))
    columns = columns_of(rows.granting, terms)
    if columns is None:
        return None
    term = free.select_related(None).only("pk", "holder", "grants", "released_at", "expires_at")
    chosen_sql, chosen_params = _select(term)
    if limited:
        chosen_sql += " LIMIT %s"
        chosen_params = (*chosen_params, Marker("limit", _NUMBER))
    pk = _pk(rows)
    expired = _HAD_EXPIRED
    noted = _noted(
        rows,
        kind=f"CASE WHEN {expired} THEN 'taken_over' ELSE 'acquired' END",
        previous_holder="c.holder",
        previous_expired_at=f"CASE WHEN {expired} THEN c.expires_at END",
        written=f"granted w JOIN chosen c ON c.{pk} = w.{pk}",
    )
    columns |= {"grant_id": grant_id}
    update_sql, update_params = _update(target, columns, alone=alone)
    every = reader_after(rows.model, rows.db, columns)
    text = _GRANT.format(
        chosen=chosen_sql,
        alias=alias_of(rows),
        update=update_sql,
        table=_table(rows),
        noted=noted,
        columns=every.sql("w"),
        had_expired=expired,
        pk=pk,
    )
    return Statement(text, (*chosen_params, *update_params)), every


def _grant_by_place(rows: LeasableRows) -> Spelled:
    """Each chosen row's own of ``grants``."""
    text = f"({{}}::uuid[])[array_position(ARRAY(SELECT {_pk(rows)} FROM chosen), {{}})]"
    return Spelled(text, Marker("grants", _UUID), F("pk"), output_field=_UUID)


def _new_grants(count: int) -> list[str]:
    """As many of what ``uuid4`` makes, which asks the system for each; in hexadecimal digits, for
    the rows bring the objects."""
    noise = os.urandom(16 * count).hex()
    each = [noise[n : n + 32] for n in range(0, len(noise), 32)]
    return [f"{n[:12]}4{n[13:16]}{_VARIANT[n[16]]}{n[17:]}" for n in each]


def _sorted(granted: list[Granted], grants: list[str]) -> list[Granted]:
    places = {grant: place for place, grant in enumerate(grants)}
    return sorted(granted, key=lambda each: places[each[0].grant_id.hex])


# Renewing


def renew_one(rows: LeasableRows, row: Any) -> bool:
    """Renew the grant of ``row``. Whether that was done; ``row`` stands as it was written then."""
    return bool(_written(rows, [row], "renew", rows.renewal, _RENEW_ONE))


def release(
    rows: LeasableRows, held: list[Any], columns: dict[str, Any], *, tell: bool
) -> list[Any]:
    """Write the ``columns`` of a release to those rows of ``held`` whose grant still lives, and
    with ``tell`` notify those who wait for them. Returns these, as they were written."""
    template = _RELEASE_AND_TELL if tell else _RELEASE
    return _written(rows, held, "release", lambda: columns, template)


def _written(
    rows: LeasableRows, held: list[Any], verb: str, columns: Any, template: str
) -> list[Any]:
    if len(held) == 1:
        (row,) = held
        values = {"key": row.pk, "grant": row.grant_id}
    else:
        values = {
            "keys": [row.pk for row in held],
            "grants": [row.grant_id for row in held],
        }
    several = len(held) != 1
    key = (type(rows), rows.model, rows.db, verb, several)
    statement = kept(key, lambda: _writing(rows, columns(), template, several=several))
    own = _reader(rows)
    return own.read(held, _execute(rows.db, statement, values))


def _writing(
    rows: LeasableRows, columns: dict[str, Any], template: str, *, several: bool
) -> Statement:
    pk: Any = rows.model._meta.pk
    if several:
        keys = Several("keys", _key_field(rows.model))
        text = "({})[array_position({}, {})]"
        grant = Spelled(text, Several("grants", _UUID), keys, F("pk"), output_field=_UUID)
        every: Any = SimpleNamespace(pk=F("pk"), grant_id=grant)
        mine = rows._of_grant(every).filter(_is_one_of("pk", keys))
    else:
        one: Any = SimpleNamespace(pk=Marker("key", pk), grant_id=Marker("grant", _UUID))
        mine = rows._of_grant(one)
    chosen_sql, chosen_params = _select(mine.only("pk").order_by("pk"))
    living = rows._everything().holding().unexpired()
    update_sql, update_params = _update(living, columns, alone=not several)
    noted = _noted(
        rows, kind="'released'", previous_holder="''", previous_expired_at="NULL", written="freed w"
    )
    text = template.format(
        chosen=chosen_sql,
        update=update_sql,
        table=_table(rows),
        noted=noted,
        columns=_reader(rows).sql(_table(rows) if template is _RENEW_ONE else "w"),
        now=_now(rows),
        channel=CHANNEL,
        resource=_resource(rows),
    )
    return Statement(text, (*chosen_params, *update_params))


def renew(
    target: QuerySet[Any], columns: dict[str, Any], grants: Mapping[Any, uuid.UUID], timeout: float
) -> list[Any]:
    """Write ``columns`` to the rows of ``target`` whose key and grant are in ``grants`` and that
    nobody else has locked; returns these rows, with ``now``. No statement runs longer than
    ``timeout`` seconds, nor waits for a lock on the table.

    That limit and the update travel in one message, which PostgreSQL takes for a transaction.
    """
    using = target.db
    model: Any = target.model
    connection: Any = connections[using]
    told = reader(model, using, model.renewal_columns)
    statement = kept(
        (type(target), model, using, "renew many"), lambda: _renewing(target, columns, told)
    )
    values = {"keys": list(grants), "grants": list(grants.values())}
    params = statement.filled(values, connection)
    if connection.in_atomic_block or not _takes_several_statements(connection):
        with durable(using), connection.cursor() as cursor:
            limit_waiting(using, timeout)
            cursor.execute(statement.sql, params)
            answers = cursor.fetchall()
    else:
        with connection.cursor() as cursor:
            limit, limit_params = waiting_limit(timeout)
            cursor.execute(f"{limit};{statement.sql}", [*limit_params, *params])
            cursor.nextset()
            answers = cursor.fetchall()
    rows = told.rows(answers)
    for row, answer in zip(rows, answers, strict=True):
        row.now = answer[-1].replace(tzinfo=UTC)
    return rows


def _renewing(target: Any, columns: dict[str, Any], told: Reader) -> Statement:
    update_sql, update_params = _update(target, columns)
    keys, grants = Several("keys", _key_field(target.model)), Several("grants", _UUID)
    connection = connections[target.db]
    text = _RENEW.format(
        keys=keys.sql(connection),
        grants=grants.sql(connection),
        pk=_pk(target),
        table=_table(target),
        update=update_sql,
        columns=told.sql(_table(target)),
        now=_now(target),
    )
    return Statement(text, (keys, grants, *update_params))


def _takes_several_statements(connection: Any) -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    bound_by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return bool(is_psycopg3) and not bound_by_server


# The pieces


class Spelled(Func):
    """SQL with a place, ``{}``, for each of its expressions."""

    def __init__(self, text: str, *expressions: Any, output_field: Any) -> None:
        super().__init__(*expressions, output_field=output_field)
        self.text = text

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        parts = [compiler.compile(each) for each in self.get_source_expressions()]
        params = [param for _, own in parts for param in own]
        return self.text.format(*[text for text, _ in parts]), params


def _is_one_of(column: str, values: Any) -> Spelled:
    # Not a lookup, which Django would put in brackets that ANY does not bear.
    return Spelled("{} = ANY({})", F(column), values, output_field=models.BooleanField())


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _pk(rows: Any) -> str:
    return _quoted(rows.model._meta.pk.column)


def _table(rows: Any) -> str:
    # As Django writes it: a name may bring its schema, as ``shop"."orders``.
    return str(connections[rows.db].ops.quote_name(rows.model._meta.db_table))


def alias_of(rows: Any) -> str:
    """Name of the table of ``rows`` in a statement: never with its schema."""
    *_, name = _table(rows).strip('"').split('"."')
    return _quoted(name)


def _key_field(model: type[models.Model]) -> Any:
    """The field whose values the keys of ``model`` are: of the row that shares its key, if any."""
    field: Any = model._meta.pk
    while field.remote_field:
        field = field.target_field
    return field


def _resource(rows: Any) -> str | None:
    return resource_of(rows.model)


def _reader(rows: Any) -> Reader:
    """Reads what the verbs on a living grant write."""
    return reader(rows.model, rows.db, rows.model.verb_columns - rows.model.granted_columns)


def _now(rows: LeasableRows) -> str:
    return str(rows.query.get_compiler(rows.db).compile(DbNow())[0])


def _noted(rows: LeasableRows, **columns: str) -> str:
    """The part of a statement that writes to the ledger, where these rows have one."""
    if not rows.keeps_events:
        return ""
    return _NOTED.format(
        ledger=_quoted(apps.get_model("leasing", "LeaseEvent")._meta.db_table),
        label=rows.model.leased_model()._meta.label_lower,
        pk=_pk(rows),
        resource=_resource(rows),
        now=_now(rows),
        **columns,
    )


def _select(rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    query: Any = rows.query.chain()
    # The lock is written behind it. Django would write one inside of transaction blocks alone.
    query.select_for_update = False
    compiled: tuple[str, tuple[Any, ...]] = query.get_compiler(rows.db).as_sql()
    return compiled


def _update(
    target: QuerySet[Any], columns: dict[str, Any], *, alone: bool = False
) -> tuple[str, tuple[Any, ...]]:
    """The UPDATE, as Django compiles it, of the rows of ``target`` that were chosen. Of one that
    is ``alone`` PostgreSQL knows that, and enters the table by its key, however small that is."""
    chosen = f"SELECT {_pk(target)} FROM chosen"
    key: Any = target.model._meta.pk
    is_chosen: Any = (
        Exact(F("pk"), RawSQL(chosen, [], output_field=key))
        if alone
        else _is_one_of("pk", RawSQL(f"ARRAY({chosen})", []))
    )
    query: Any = target.filter(is_chosen).query.chain(sql.UpdateQuery)
    query.add_update_values(columns)
    compiled: tuple[str, tuple[Any, ...]] = query.get_compiler(target.db).as_sql()
    return compiled


def _is_plain(query: Any) -> bool:
    """Whether ``query`` is of all rows of a model, in no order of its own."""
    return not (
        query.where
        or query.order_by
        or query.extra_order_by
        or query.annotations
        or query.extra
        or query.distinct
        or query.combinator
        or query.is_sliced
    )


def _execute(using: str, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    connection = connections[using]
    params = statement.filled(values, connection)
    with connection.cursor() as cursor:
        cursor.execute(statement.sql, params)
        answers: list[Any] = cursor.fetchall()
    return answers
