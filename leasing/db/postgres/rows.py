"""Parts of the one-statement forms: names of tables and columns, parts of statements."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from django.apps import apps
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Func, QuerySet, UUIDField, sql
from django.db.models.expressions import (
    CombinedExpression,
    Expression,
    ExpressionWrapper,
    RawSQL,
    Value,
)
from django.db.models.lookups import Exact

from leasing.db.cached_cursors import fetch_all, new_cursor
from leasing.db.row_reader import Reader
from leasing.db.statements import Marker, Statement
from leasing.functions import DbNow
from leasing.validation.terms import Terms


class LeasableRows(Protocol):
    """The interface of ``LeasableQuerySet`` that this module uses: that class stands in a layer
    above; conditions and columns of its portable forms are compiled here."""

    keeps_events: bool
    is_kept: bool

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


_NOTED = """,
noted AS (
    INSERT INTO {ledger} (model, key, resource, kind, holder, previous_holder,
        previous_expired_at, grant_id, fencing_token, at, reason, actor)
    SELECT '{label}', w.{pk}::text, {resource}, {kind}, w.holder, {previous_holder},
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

#: The parts of the moments of a statement.
_OF_THE_STATEMENT = (DbNow, Value, Marker, ExpressionWrapper, CombinedExpression)

UUID: models.Field[Any, Any] = UUIDField()

NUMBER: models.Field[Any, Any] = models.BigIntegerField()

TEXT: models.Field[Any, Any] = models.CharField()


@cache
def serves(using: str) -> bool:
    """Return True if these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"


@cache
def suits(model: type[models.Model]) -> bool:
    """Return True if the rows of ``model`` are in one table."""
    concrete: Any = model._meta.concrete_model
    fields = concrete._meta
    return len(fields.local_concrete_fields) == len(fields.concrete_fields)


@cache
def resource_of(model: type[Any]) -> str | None:
    """``lease_resource`` of a row ``w``, in SQL; None when only Python knows it."""
    named: Any = apps.get_model("leasing", "Lease")
    if model.lease_resource is named.lease_resource:
        return "w.resource"
    pk: Any = model._meta.pk
    is_noted = model.lease_resource is named.__base__.lease_resource
    if not is_noted or type(key_field(model)) not in _SPELLED_ALIKE:
        return None
    return f"'{model.leased_model()._meta.label_lower}:' || w.{_quoted(pk.column)}::text"


def notes(rows: LeasableRows) -> bool:
    """Return True if the events of ``rows`` can be recorded by the statement that makes them."""
    model: Any = rows.model
    return not rows.keeps_events or resource_of(model) is not None


class Spelled(Func):
    """SQL with a place, ``{}``, for each of its expressions."""

    def __init__(self, text: str, *expressions: Any, output_field: Any) -> None:
        super().__init__(*expressions, output_field=output_field)
        self.text = text

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        parts = [compiler.compile(each) for each in self.get_source_expressions()]
        params = [param for _, own in parts for param in own]
        return self.text.format(*[text for text, _ in parts]), params


def is_one_of(column: str, values: Any) -> Spelled:
    # Not a lookup, which Django would put in brackets that ANY does not allow.
    return Spelled("{} = ANY({})", F(column), values, output_field=models.BooleanField())


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def pk_of(rows: Any) -> str:
    return _quoted(rows.model._meta.pk.column)


def table_of(rows: Any) -> str:
    # As Django writes it: a name may bring its schema, as ``shop"."orders``.
    return str(connections[rows.db].ops.quote_name(rows.model._meta.db_table))


def alias_of(rows: Any) -> str:
    """Name of the table of ``rows`` in a statement: never with its schema."""
    *_, name = table_of(rows).strip('"').split('"."')
    return _quoted(name)


def key_field(model: type[models.Model]) -> Any:
    """The field whose values the keys of ``model`` are: of the row that shares its key, if any."""
    field: Any = model._meta.pk
    while field.remote_field:
        field = field.target_field
    return field


def now_of(rows: LeasableRows) -> str:
    return str(rows.query.get_compiler(rows.db).compile(DbNow())[0])


def moments_of(columns: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of those ``columns`` that are given a moment of the statement, equal in all
    rows that it writes: it depends on the clock alone, and on what the call brings."""
    return frozenset(
        name
        for name, value in columns.items()
        if isinstance(value, Expression)
        and all(isinstance(part, _OF_THE_STATEMENT) for part in value.flatten())
    )


def returned_sql(rows: LeasableRows, read: Reader) -> str:
    """The columns that an update returns: those that are ``read`` of it, and those of its event."""
    columns = [*read.columns, '"holder"', '"grant_id"', '"fencing_token"']
    if resource_of(rows.model) == "w.resource":
        columns.append('"resource"')
    return ", ".join([f"{table_of(rows)}.{column}" for column in dict.fromkeys(columns)])


def noted_sql(rows: LeasableRows, **columns: str) -> str:
    """The part of a statement that writes to the ledger, where these rows have one."""
    if not rows.keeps_events:
        return ""
    return _NOTED.format(
        ledger=_quoted(apps.get_model("leasing", "LeaseEvent")._meta.db_table),
        label=rows.model.leased_model()._meta.label_lower,
        pk=pk_of(rows),
        resource=resource_of(rows.model),
        now=now_of(rows),
        **columns,
    )


def compiled_select(rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    query: Any = rows.query.chain()
    # The lock is written behind it. Django would write one inside of transaction blocks alone.
    query.select_for_update = False
    compiled: tuple[str, tuple[Any, ...]] = query.get_compiler(rows.db).as_sql()
    return compiled


def compiled_update(
    target: QuerySet[Any], columns: dict[str, Any], *, alone: bool = False
) -> tuple[str, tuple[Any, ...]]:
    """The UPDATE, as Django compiles it, of the rows of ``target`` that were chosen. Of one that
    is ``alone`` PostgreSQL knows that, and enters the table by its key, however small that is."""
    chosen = f"SELECT {pk_of(target)} FROM chosen"
    key: Any = target.model._meta.pk
    is_chosen: Any = (
        Exact(F("pk"), RawSQL(chosen, [], output_field=key))
        if alone
        else is_one_of("pk", RawSQL(f"ARRAY({chosen})", []))
    )
    query: Any = target.filter(is_chosen).query.chain(sql.UpdateQuery)
    query.add_update_values(columns)
    compiled: tuple[str, tuple[Any, ...]] = query.get_compiler(target.db).as_sql()
    return compiled


def execute(
    connection: BaseDatabaseWrapper, statement: Statement, values: Mapping[str, Any]
) -> list[Any]:
    """Return the rows of the answer to ``statement`` with ``values``."""
    params = statement.filled(values, connection)
    if statement.is_kept:
        return fetch_all(connection, statement.sql, params)
    with new_cursor(connection) as cursor:
        cursor.execute(statement.sql, params)
        answers: list[Any] = cursor.fetchall()
    return answers
