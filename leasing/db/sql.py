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
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

from django.apps import apps
from django.core.exceptions import EmptyResultSet
from django.db import connections, models

from leasing.db.dialects import CHANNEL, durable, limit_waiting, refuse_transaction, waiting_limit
from leasing.db.row_reader import Reader
from leasing.db.statements import (
    array_as,
    array_of,
    cached_statement,
    fetch_all,
    moment,
    new_cursor,
    own_field,
    quoted,
    sent,
    table_of,
    type_of,
)
from leasing.functions import DbMicroseconds, DbNow
from leasing.runtime.clock import clock

Method = TypeVar("Method", bound=Callable[..., Any])
#: A condition, or the SQL of each column.
Text = str | Mapping[str, str]

ROW = "t.{key} = %(value)s::{key_type} AND t.grant_id = %(grant)s::uuid"
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
    + """ WHERE t.{column} = ANY(%(value)s::{value_type}[]) AND {available}
    ORDER BY t.{column}"""
)
OR_NONE = " AND (SELECT count(*) FROM chosen) = cardinality(%(value)s::{value_type}[])"
FIRST = BEFORE + " WHERE {available} ORDER BY t.{key} LIMIT %(value)s"
AS_CHOSEN = "ORDER BY array_position(ARRAY(SELECT {key} FROM chosen), w.{key})"
HAD_EXPIRED = "c.grants > 0 AND c.released_at IS NULL"

NOTED = """, noted AS (
    INSERT INTO {ledger} (model, key, resource, kind, holder, previous_holder,
        previous_expired_at, grant_id, fencing_token, at, reason, actor)
    SELECT '{label}', w.{key}::text, {resource}, {kind}, w.holder, {previous_holder},
        {previous_expired_at}, w.grant_id, w.fencing_token, {now}, '', ''
    FROM {written}
)"""

#: SQL that has one value in all rows of a statement.
_OF_NO_ROW = re.compile(r"(%\(\w+\)s|\{now\}|NULL|'[^']*'|\d+|::\w+|[ +-])+")
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


def alike_in(columns: Mapping[str, str]) -> frozenset[str]:
    """Return the names of those ``columns`` to which a statement surely writes one value in all
    rows: their SQL uses terms, the clock and constants alone."""
    return frozenset(name for name, text in columns.items() if _OF_NO_ROW.fullmatch(text))


@cache
def serves(using: str) -> bool:
    """Return True if these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"


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


class _Made(NamedTuple):
    """A statement, and what reads its answer."""

    text: str
    read: Reader
    #: The field of the value, or of the keys, by which it finds its rows.
    field: Any
    #: The terms that it has as values.
    terms: tuple[str, ...] = ()


class Statements:
    """The statements on the rows of ``model`` in the database ``using``, by the conditions and
    columns of ``kind``, their class of querysets. A verb that cannot be sent does nothing: it has a
    condition or columns in Python alone, or the database is not PostgreSQL."""

    def __init__(self, kind: Any, model: Any, using: str) -> None:
        self._about = kind, model, using
        self._using = using

    # Renew and release

    def renew_one(self, row: Any) -> bool:
        """Renew the grant of ``row``. Returns whether that was done; ``row`` stands as it was
        written then. Raises LeaseInTransaction."""
        made = self._of_holder(RENEW, ROW)
        if made is None:
            return False
        connection = connections[self._using]
        refuse_transaction(connection)
        values = sent(made.field, row.pk, connection, grant=row.grant_id)
        return bool(made.read.rows(fetch_all(connection, made.text, values), onto={row.pk: row}))

    def release(self, connection: Any, held: Mapping[Any, Any]) -> list[Any]:
        """Release the rows whose grant still lives, and notify those who wait for them. ``held``
        maps keys to rows. Returns the released rows, as they were written."""
        made = self._of_holder(RELEASE, ROW if len(held) == 1 else ROWS)
        if made is None:
            return []
        grants = [row.grant_id for row in held.values()]
        if len(held) == 1:
            values = sent(made.field, next(iter(held)), connection, grant=grants[0])
        else:
            values = {"keys": array_as(made.field, held, connection), "grants": array_of(grants)}
        return made.read.rows(fetch_all(connection, made.text, values), onto=held)

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> list[Any] | None:
        """Renew the rows whose key and grant are in ``grants`` and that nobody else has locked;
        returns these rows, with ``now``; None if it cannot be sent. No statement runs longer than
        ``timeout`` seconds, nor waits for a lock on the table.

        That limit and the update travel in one message, which PostgreSQL takes for a transaction.
        """
        made = self._of_holder(RENEW, MANY_ROWS)
        if made is None:
            return None
        connection: Any = connections[self._using]
        keys = array_as(made.field, grants.keys(), connection)
        values = {"keys": keys, "grants": array_of(list(grants.values()))}
        if connection.in_atomic_block or not _takes_several_statements(connection):
            with durable(self._using), new_cursor(connection) as cursor:
                limit_waiting(self._using, timeout)
                cursor.execute(made.text, values)
                return made.read.rows(cursor.fetchall())
        with new_cursor(connection) as cursor:
            cursor.execute(f"{waiting_limit(timeout)};{made.text}", values)
            cursor.nextset()
            return made.read.rows(cursor.fetchall())

    def _of_holder(self, template: str, which: str) -> _Made | None:
        """Return the statement on rows whose grant still lives; None if it cannot be sent."""
        if not serves(self._using):
            return None
        return cached_statement(
            (*self._about, template, which),
            lambda: Spelling(*self._about).of_holder(template, which),
        )

    # Grant

    def grant(
        self, terms: Any, chosen: str, column: str, value: Any, rows: Any = None
    ) -> list[Any] | None:
        """Grant available rows. Returns them, with ``previous_expired_at`` where a term had
        expired; None if it cannot be sent. Raises LeaseInTransaction.

        Args:
            terms: The terms of the grants, with a request for ONE alone.
            chosen: ONE: the row whose ``column`` is ``value``; ALL: those whose ``column`` is in
                ``value``, in any order, or none; FIRST: up to ``value``, in their order.
            column: The name of a field, or "pk".
            value: See ``chosen``.
            rows: The rows of which they are to be; None: any.
        """
        if not serves(self._using):
            return None
        connection = connections[self._using]
        refuse_transaction(connection)
        filters: dict[str, Any] = {}
        if rows is None:
            if terms.request_id is not None:
                chosen = ONE_BY_REQUEST
                filters["lowest"], filters["highest"] = terms.grants_of_request
            made = cached_statement(
                (*self._about, chosen, column),
                lambda: Spelling(*self._about).grant(chosen, column),
            )
        else:
            try:
                made, filters = Spelling(*self._about).filtered(terms, chosen, column, value, rows)
            except EmptyResultSet:
                return []
        if made is None:
            return None
        named = {name: getattr(terms, name) for name in made.terms}
        values = sent(made.field, value, connection, grant=terms.new_grant(), **named)
        sent_at = clock()
        values.update(filters)
        granted = made.read.rows(fetch_all(connection, made.text, values, once=rows is not None))
        for row in granted:
            row.now, row.sent_at = row.acquired_at, sent_at
        return granted


class Spelling:
    """Makes statements on the rows of ``model``: arguments are those of ``Statements``. What cannot
    be sent is None."""

    def __init__(self, kind: Any, model: Any, using: str) -> None:
        self._kind, self._model, self._using = kind, model, using
        self._key_field = own_field(model._meta.pk)
        #: The ``lease_resource`` of a row ``w``; None if only Python knows it.
        self._resource = _resource_of(model)

    def of_holder(self, template: str, which: str) -> _Made | None:
        """Return the statement on rows whose grant still lives."""
        kind, is_renewal = self._kind, template is RENEW
        needed = [kind.holding, kind.unexpired, *([kind.renewal] if is_renewal else [])]
        if not self.suits(needed, is_noted=not is_renewal):
            return None
        if which is MANY_ROWS:
            read = Reader(self._model, self._using, self._model.renewal_columns, more=("now",))
        else:
            changed = self._model.verb_columns - self._model.granted_columns
            alike = alike_in(RELEASED if which is ROWS else {})
            read = Reader(self._model, self._using, changed, alike=alike)
        text = self._text(
            template,
            which=self._text(which),
            chosen=self._text(CHOSEN_ROW if which is ROW else CHOSEN_ROWS),
            holding=self._text(sql_of(kind.holding)),
            unexpired=self._text(sql_of(kind.unexpired)),
            columns=self._assigned(sql_of(kind.renewal) if is_renewal else RELEASED),
            answer=(read.sql("t") if is_renewal else read.sql("w", "freed"))
            + (self._text(", {now}") if which is MANY_ROWS else ""),
            noted=self._noted("freed AS w", "'released'", "''", "NULL"),
            told=self._text(TOLD) if kind.tells_waiters else "",
        )
        return _Made(text, read, self._key_field)

    def grant(self, chosen: str, column: str) -> _Made | None:
        """Return the statement that grants what the text ``chosen`` brings by ``column``."""
        if not self.suits([self._kind.available, self._kind.granting]):
            return None
        meta = self._model._meta
        named = meta.pk if column == "pk" else meta.get_field(column)
        field = own_field(named)
        value_type = type_of(field, connections[self._using])
        by = {"column": quoted(named.column), "value_type": value_type}
        text = self._text(chosen, available=self._text(sql_of(self._kind.available)), **by)
        return self._granting(text, "t", chosen, None if chosen is FIRST else field, **by)

    def filtered(
        self, terms: Any, chosen: str, column: str, value: Any, rows: Any
    ) -> tuple[_Made | None, dict[str, Any]]:
        """Return the statement that grants what Django's compiler says of ``rows``, with the values
        of their filter. The other arguments are those of ``Statements.grant``. Raises
        EmptyResultSet."""
        if not self.suits([self._kind.available, self._kind.granting]):
            return None, {}
        free = rows.available()
        if chosen is FIRST:
            free = free[:value]
        else:
            free = free.filter(**{column: value})
            if terms.request_id is not None:
                free = free.exclude(grant_id__range=terms.grants_of_request)
        term = free.select_related(None).only("pk", "holder", "grants", "released_at", "expires_at")
        query: Any = term.query.chain()
        # The lock is written behind it. Django would write one inside of transaction blocks alone.
        query.select_for_update = False
        text, params = query.get_compiler(self._using).as_sql()
        values = {f"filter_{number}": value for number, value in enumerate(params)}
        text = text.replace("%%", "%%%%") % tuple(f"%({name})s" for name in values)
        # What the table is called in a statement that Django compiles: never with its schema.
        alias = quoted(self._model._meta.db_table.strip('"').split('"."')[-1])
        return self._granting(text, alias, chosen), values

    def suits(self, needed: list[Any], *, is_noted: bool = True) -> bool:
        """Return True if all has SQL that is ``needed``: these methods, and the name that the
        ledger gives the rows."""
        is_spelled = not (is_noted and self._kind.keeps_events) or self._resource is not None
        return is_spelled and all(map(sql_of, needed))

    # Parts of statements

    def _granting(self, rows: str, alias: str, chosen: str, field: Any = None, **by: str) -> _Made:
        """Return the statement that grants what the text ``rows`` brings, in which the table has
        that ``alias``."""
        is_one = chosen not in (ALL, FIRST)
        columns = sql_of(self._kind.granting)
        alike = alike_in({} if is_one else columns)
        read = Reader(self._model, self._using, more=("previous_expired_at",), alike=alike)
        expired = f"CASE WHEN {HAD_EXPIRED} THEN c.expires_at END"
        how = f"CASE WHEN {HAD_EXPIRED} THEN 'taken_over' ELSE 'acquired' END"
        written = self._text("granted AS w JOIN chosen AS c ON c.{key} = w.{key}")
        text = self._text(
            GRANT,
            rows=rows,
            alias=alias,
            grant="%(grant)s::uuid" if is_one else "gen_random_uuid()",
            columns=self._assigned(columns),
            chosen=self._text(CHOSEN_ROW if is_one else CHOSEN_ROWS)
            + (self._text(OR_NONE, **by) if chosen is ALL else ""),
            noted=self._noted(written, how, "c.holder", expired),
            answer=read.sql("w", "granted"),
            expired=expired,
            written=written,
            order=self._text(AS_CHOSEN) if chosen is FIRST else "",
        )
        asked = " ".join([sql_of(self._kind.available), *columns.values()])
        return _Made(text, read, field, tuple(re.findall(r"%\((\w+)\)s", asked)))

    @cached_property
    def _places(self) -> dict[str, Any]:
        connection, key = connections[self._using], self._model._meta.pk
        return {
            "table": table_of(self._model),
            "key": quoted(key.column),
            "key_type": type_of(self._key_field, connection),
            "label": self._model.leased_model()._meta.label_lower,
            "resource": self._resource,
            "now": moment(DbNow, connection),
            "microseconds": moment(DbMicroseconds, connection),
            "channel": CHANNEL,
            "ledger": quoted(apps.get_model("leasing", "LeaseEvent")._meta.db_table),
        }

    def _text(self, text: str, **parts: Any) -> str:
        return text.format_map(self._places | parts)

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


def _takes_several_statements(connection: Any) -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    bound_by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return bool(is_psycopg3) and not bound_by_server
