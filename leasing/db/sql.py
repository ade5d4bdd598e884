"""PostgreSQL's statements of a holder's verbs, by hand: grant, renew and release, of one row or of
many.

Each locks its rows (passing over those that someone else has locked), judges them, writes, notes
the events, and answers: one round trip where the portable form takes six. A row is judged as it is
locked, by its latest version; what follows finds it by its key. A statement that finds nothing to
do has changed nothing, and the portable form (``leasing.stores.portable``), which is the
definition, then says why.

Conditions and columns that a model may change stand beside the portable ones, on their methods: see
``in_sql``. In all texts ``t`` is the row, ``{now}`` the database's clock, ``%(name)s`` a value.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

from django.apps import apps
from django.core.exceptions import EmptyResultSet
from django.db import connections, models

from leasing.db.cached_cursors import fetch_all, new_cursor
from leasing.db.dialects import CHANNEL, durable, limit_waiting, refuse_transaction, waiting_limit
from leasing.db.row_reader import Reader
from leasing.db.statements import (
    array_as,
    array_of,
    cached_statement,
    moment,
    own_field,
    quoted,
    sent,
    sent_as,
    table_of,
    type_of,
)
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
ONE = BEFORE + " WHERE t.{column} = %(value)s::{value_type} AND {available}"
#: The grant of a request has ended, and is not made twice.
ONE_BY_REQUEST = (
    ONE + " AND (t.grant_id BETWEEN %(lowest)s::uuid AND %(highest)s::uuid) IS NOT TRUE"
)
ALL = (
    BEFORE
    + """ WHERE t.{column} = ANY(%(values)s::{value_type}[]) AND {available}
    ORDER BY t.{column}"""
)
OR_NONE = " AND (SELECT count(*) FROM chosen) = %(count)s"
FIRST = BEFORE + " WHERE {available} ORDER BY t.{key} LIMIT %(limit)s"
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
#: Values of columns by the text that writes them, and the types of terms that come back as they
#: were sent: nobody reads these back.
_WRITTEN: Mapping[str, Any] = {"NULL": None, "0": 0, "''": ""}
_TERM = re.compile(r"%\((\w+)\)s(::interval)?")
_KEPT_AS_SENT: Mapping[type, type] = {
    models.CharField: str,
    models.TextField: str,
    models.SmallIntegerField: int,
    models.IntegerField: int,
    models.DurationField: timedelta,
}


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


@cache
def serves(using: str) -> bool:
    """Return True if these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"


def statements(verb: str, kind: Any, model: Any, using: str) -> Statements | None:
    """Return the statements on the rows of ``model`` in the database ``using``, by the conditions
    and columns of ``kind``, their class of querysets. None where they do not serve for ``verb``:
    "grants", "renews" or "releases"."""
    if not serves(using):
        return None
    about = statements, kind, model, using
    known = cached_statement(about, lambda: Statements(kind, model, using))
    return known if getattr(known, verb) else None


def _resource_of(model: Any) -> str | None:
    """Return the ``lease_resource`` of a row ``w`` of ``model``; None if only Python knows it."""
    named: Any = apps.get_model("leasing", "Lease")
    if model.lease_resource is named.lease_resource:
        return "w.resource"
    is_plain = model.lease_resource is named.__base__.lease_resource
    if is_plain and type(own_field(model._meta.pk)) in _SPELLED_ALIKE:
        label = model.leased_model()._meta.label_lower
        return f"'{label}:' || w.{quoted(model._meta.pk.column)}::text"
    return None


class Statements:
    """See ``statements``. Those of a kind that has a condition or columns in Python alone can't be
    sent: ``renews``, ``releases`` and ``grants`` say so."""

    def __init__(self, kind: Any, model: Any, using: str) -> None:
        self._kind, self._model, self._using = kind, model, using
        connection = connections[using]
        self._key: Any = model._meta.pk
        self._key_field = own_field(self._key)
        resource = _resource_of(model)
        self._places = {
            "table": table_of(model),
            "key": quoted(self._key.column),
            "key_type": type_of(self._key_field, connection),
            "label": model.leased_model()._meta.label_lower,
            "resource": resource,
            "now": moment(DbNow, connection),
            "microseconds": moment(DbMicroseconds, connection),
            "channel": CHANNEL,
            "ledger": quoted(apps.get_model("leasing", "LeaseEvent")._meta.db_table),
        }
        lives = all(map(sql_of, (kind.holding, kind.unexpired)))
        is_noted = not kind.keeps_events or resource is not None
        self.renews = bool(lives and sql_of(kind.renewal))
        self.releases = lives and is_noted
        self.grants = is_noted and all(map(sql_of, (kind.available, kind.granting)))
        self._grants: dict[tuple[str, str], _Grant] = {}

    def _text(self, text: str, **parts: Any) -> str:
        return text.format_map(self._places | parts)

    # Renew and release

    def renew_one(self, row: Any) -> bool:
        """Renew the grant of ``row``. Returns whether that was done; ``row`` stands as it was
        written then. Raises LeaseInTransaction."""
        connection = connections[self._using]
        refuse_transaction(connection)
        text, read = self._renewal
        return bool(read.read([row], fetch_all(connection, text, self._value_of(row, connection))))

    def release(self, connection: Any, held: list[Any]) -> list[Any]:
        """Release those rows of ``held`` whose grant still lives, and notify those who wait for
        them. Returns these, as they were written."""
        if len(held) == 1:
            text, read = self._release_of_one
            values = self._value_of(held[0], connection)
        else:
            text, read = self._release_of_several
            keys, grants = zip(*((row.pk, row.grant_id) for row in held), strict=True)
            values = self._values_of(keys, grants, connection)
        return read.read(held, fetch_all(connection, text, values))

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> list[Any]:
        """Renew the rows whose key and grant are in ``grants`` and that nobody else has locked;
        returns these rows, with ``now``. No statement runs longer than ``timeout`` seconds, nor
        waits for a lock on the table.

        That limit and the update travel in one message, which PostgreSQL takes for a transaction.
        """
        text, read = self._renewals
        connection: Any = connections[self._using]
        values = self._values_of(grants.keys(), grants.values(), connection)
        if connection.in_atomic_block or not _takes_several_statements(connection):
            with durable(self._using), new_cursor(connection) as cursor:
                limit_waiting(self._using, timeout)
                cursor.execute(text, values)
                return read.rows(cursor.fetchall())
        with new_cursor(connection) as cursor:
            cursor.execute(f"{waiting_limit(timeout)};{text}", values)
            cursor.nextset()
            return read.rows(cursor.fetchall())

    def _value_of(self, row: Any, connection: Any) -> dict[str, Any]:
        key = sent_as(self._key_field, row.pk, connection)
        return {"key": key, "grant": sent(row.grant_id)}

    def _values_of(
        self, keys: Iterable[Any], grants: Iterable[Any], connection: Any
    ) -> dict[str, Any]:
        keys = array_as(self._key_field, keys, connection)
        return {"keys": keys, "grants": array_of(list(grants))}

    @cached_property
    def _renewal(self) -> tuple[str, Reader]:
        return self._of_holders(RENEW, ROW)

    @cached_property
    def _renewals(self) -> tuple[str, Reader]:
        return self._of_holders(RENEW, MANY_ROWS)

    @cached_property
    def _release_of_one(self) -> tuple[str, Reader]:
        return self._of_holders(RELEASE, ROW)

    @cached_property
    def _release_of_several(self) -> tuple[str, Reader]:
        return self._of_holders(RELEASE, ROWS)

    def _of_holders(self, template: str, which: str) -> tuple[str, Reader]:
        """Make the statement on rows whose grant still lives, and what reads its answer."""
        table, columns = ("t", sql_of(self._kind.renewal)) if template is RENEW else ("w", RELEASED)
        if which is MANY_ROWS:
            read = Reader(self._model, self._using, self._model.renewal_columns, more=("now",))
        else:
            changed = self._model.verb_columns - self._model.granted_columns
            alike = moments_of(RELEASED) if which is ROWS else frozenset[str]()
            read = Reader(self._model, self._using, changed, alike=alike)
        text = self._text(
            template,
            which=self._text(which),
            chosen=self._text(CHOSEN_ROW if which is ROW else CHOSEN_ROWS),
            holding=self._text(sql_of(self._kind.holding)),
            unexpired=self._text(sql_of(self._kind.unexpired)),
            columns=self._assigned(columns),
            answer=read.sql(table, "freed") + (self._text(", {now}") if which is MANY_ROWS else ""),
            noted=self._noted("freed AS w", "'released'", "''", "NULL"),
            told=self._text(TOLD) if self._kind.tells_waiters else "",
        )
        return text, read

    # Grant

    def grant(self, terms: Any, column: str, value: Any, rows: Any) -> list[Granted]:
        """Grant the row whose ``column`` is ``value``, if it is one of ``rows``; None: of all.
        Returns what was granted. Raises LeaseInTransaction."""
        connection = connections[self._using]
        values = {"grant": sent(terms.new_grant())}
        if rows is not None:
            free = rows.available().filter(**{column: value})
            if terms.request_id is not None:
                free = free.exclude(grant_id__range=terms.grants_of_request)
            return self._granted_of(free, connection, terms, values, alone=True)
        text = ONE
        if terms.request_id is not None:
            text = ONE_BY_REQUEST
            values["lowest"], values["highest"] = map(sent, terms.grants_of_request)
        statement = self._grants.get((text, column)) or self._grant(text, column, terms)
        values["value"] = sent_as(statement.field, value, connection)
        return self._granted(statement, connection, terms, values)

    def claim(self, terms: Any, limit: int, rows: Any) -> list[Granted]:
        """``grant`` up to ``limit`` of ``rows``, in their order; None: of all."""
        connection = connections[self._using]
        if rows is not None:
            return self._granted_of(rows.available()[:limit], connection, terms, {})
        statement = self._grants.get((FIRST, "pk")) or self._grant(FIRST, "pk", terms)
        return self._granted(statement, connection, terms, {"limit": limit})

    def grant_all(self, terms: Any, column: str, values: list[str]) -> list[Granted]:
        """``grant`` the rows whose ``column`` is one of ``values``, in the order of these, or
        none."""
        connection = connections[self._using]
        statement = self._grants.get((ALL, column)) or self._grant(ALL, column, terms)
        sent_values = {
            "values": array_as(statement.field, values, connection),
            "count": len(values),
        }
        granted = self._granted(statement, connection, terms, sent_values)
        found = {getattr(row, statement.field.attname): (row, kind) for row, kind in granted}
        return [found[value] for value in values] if found else []

    def _grant(self, chosen: str, column: str, terms: Any) -> _Grant:
        """Make the statement that grants what the text ``chosen`` brings by ``column``, and keep
        it."""
        named = self._key if column == "pk" else self._model._meta.get_field(column)
        field = own_field(named)
        text = self._text(
            chosen,
            column=quoted(named.column),
            value_type=type_of(field, connections[self._using]),
            available=self._text(sql_of(self._kind.available)),
        )
        number = {FIRST: "some", ALL: "all"}.get(chosen, "one")
        made = self._grants[chosen, column] = self._made(text, "t", number, terms, field)
        return made

    def _made(self, chosen: str, alias: str, number: str, terms: Any, field: Any = None) -> _Grant:
        """Return the statement that grants what the text ``chosen`` brings: "one", "some", or "all"
        or none."""
        alone, columns = number == "one", sql_of(self._kind.granting)
        known = _not_read(self._model, self._using, columns, terms)
        alike = frozenset() if alone else moments_of(columns)
        read = Reader(
            self._model,
            self._using,
            more=("previous_expired_at",),
            alike=alike,
            known=tuple(known),
        )
        expired = f"CASE WHEN {HAD_EXPIRED} THEN c.expires_at END"
        how = f"CASE WHEN {HAD_EXPIRED} THEN 'taken_over' ELSE 'acquired' END"
        written = self._text("granted AS w JOIN chosen AS c ON c.{key} = w.{key}")
        text = self._text(
            GRANT,
            rows=chosen,
            alias=alias,
            grant="%(grant)s::uuid" if alone else "gen_random_uuid()",
            columns=self._assigned(columns),
            chosen=self._text(CHOSEN_ROW if alone else CHOSEN_ROWS)
            + (OR_NONE if number == "all" else ""),
            noted=self._noted(written, how, "c.holder", expired),
            answer=read.sql("w", "granted"),
            expired=expired,
            written=written,
            order=self._text(IN_THEIR_ORDER) if number == "some" else "",
        )
        asked = [name for name in re.findall(r"%\((\w+)\)s", text) if hasattr(terms, name)]
        return _Grant(text, read, tuple(dict.fromkeys(asked)), tuple(known.values()), field)

    def _granted_of(
        self, rows: Any, connection: Any, terms: Any, values: dict[str, Any], *, alone: bool = False
    ) -> list[Granted]:
        """``grant`` what Django's compiler says of ``rows``."""
        refuse_transaction(connection)
        term = rows.select_related(None).only("pk", "holder", "grants", "released_at", "expires_at")
        query: Any = term.query.chain()
        # The lock is written behind it. Django would write one inside of transaction blocks alone.
        query.select_for_update = False
        try:
            text, params = query.get_compiler(self._using).as_sql()
        except EmptyResultSet:
            return []
        values |= {f"filter_{number}": value for number, value in enumerate(params)}
        places = tuple(f"%(filter_{number})s" for number in range(len(params)))
        chosen = text.replace("%%", "%%%%") % places
        # What the table is called in a statement that Django compiles: never with its schema.
        alias = quoted(self._model._meta.db_table.strip('"').split('"."')[-1])
        statement = self._made(chosen, alias, "one" if alone else "some", terms)
        return self._granted(statement, connection, terms, values, is_kept=False)

    def _granted(
        self,
        statement: _Grant,
        connection: Any,
        terms: Any,
        values: dict[str, Any],
        *,
        is_kept: bool = True,
    ) -> list[Granted]:
        refuse_transaction(connection)
        for name in statement.terms:
            values[name] = sent(getattr(terms, name))
        sent_at = clock()
        if is_kept:
            answers = fetch_all(connection, statement.text, values)
        else:
            with new_cursor(connection) as cursor:
                cursor.execute(statement.text, values)
                answers = cursor.fetchall()
        known = [value if term is None else getattr(terms, term) for term, value in statement.known]
        granted = statement.read.rows(answers, known)
        for row in granted:
            row.now, row.sent_at = row.acquired_at, sent_at
        return [
            (row, "acquired" if row.previous_expired_at is None else "taken_over")
            for row in granted
        ]

    # Parts of statements

    def _assigned(self, columns: Mapping[str, str]) -> str:
        return ", ".join(f"{quoted(name)} = {self._text(text)}" for name, text in columns.items())

    def _noted(self, written: str, kind: str, previous_holder: str, expired: str) -> str:
        """The part of a statement that writes to the ledger, where these rows have one."""
        if not self._kind.keeps_events:
            return ""
        return self._text(
            NOTED,
            written=written,
            kind=kind,
            previous_holder=previous_holder,
            previous_expired_at=expired,
        )


class _Grant(NamedTuple):
    """A statement that grants, and what reads its answer."""

    text: str
    read: Reader
    #: The terms that it has as values.
    terms: tuple[str, ...]
    #: Of each column that is not read back the term that it was given, or None and its value.
    known: tuple[tuple[str | None, Any], ...]
    #: The field by which the rows were chosen.
    field: Any


def _not_read(
    model: Any, using: str, columns: Mapping[str, str], terms: Any
) -> dict[str, tuple[str | None, Any]]:
    """Return what those ``columns`` have, by attribute, that are known once they are written:
    constants, and terms that come back as they were sent."""
    known: dict[str, tuple[str | None, Any]] = {}
    by_column = {field.column: field for field in model._meta.concrete_fields}
    for column, text in columns.items():
        field, term = by_column[column], _TERM.fullmatch(text)
        if field.get_db_converters(connections[using]):
            continue
        if text == "NULL" or (text in _WRITTEN and type(field) in _KEPT_AS_SENT):
            known[field.attname] = None, _WRITTEN[text]
        elif term and type(getattr(terms, term[1])) is _KEPT_AS_SENT.get(type(field)):
            known[field.attname] = term[1], None
    return known


def moments_of(columns: Mapping[str, str]) -> frozenset[str]:
    """Return the names of those ``columns`` that are given a moment of the statement, equal in all
    rows that it writes: it is made of the clock, and of nothing in the row."""
    return frozenset(name for name, text in columns.items() if "{now}" in text and "t." not in text)


def _takes_several_statements(connection: Any) -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    bound_by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return bool(is_psycopg3) and not bound_by_server
