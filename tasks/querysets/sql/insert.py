"""PostgreSQL's statements for new tasks: for one, for one unless its key is taken, and for many.

Each names every column that a caller may give; the others are constants of the text, or left to the
database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, overload

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.signals import post_save, pre_save

from leasing.db.row_reader import instance_of
from leasing.db.statements import LONG_VALUE, cached_statement, fetch_all, moment
from leasing.functions import DbNow
from tasks.notifier import CHANNEL
from tasks.payload import dumped_many

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.producer import NewTask, NewTasks

#: The SQL of the columns of a new task.
COLUMNS = {
    "name": "%(name)s",
    "kind": "%(kind)s::smallint",
    "queue": "%(queue)s",
    "task_data": "%(task_data)s::jsonb",
    "priority": "(%(priority)s)::smallint",
    "max_attempts": "%(max_attempts)s::integer",
    "timeout": "%(timeout)s::interval",
    "progress_timeout": "%(progress_timeout)s::interval",
    "scheduled_at": "coalesce(%(scheduled_at)s::timestamptz, {now} + %(delay)s::interval)",
    "created_at": "{now}",
    "unique_key": "%(unique_key)s::varchar",
    "unique_for": "%(unique_for)s",
    "unique_until": "{now} + %(window)s::interval",
    "enqueued_key": "%(enqueued_key)s::varchar",
    "idempotency_key": "%(idempotency_key)s::varchar",
    "concurrency_key": "%(concurrency_key)s",
    "concurrency_limit": "%(concurrency_limit)s::smallint",
    "parent_id": "%(parent_id)s::bigint",
    "compensation": "%(compensation)s::varchar",
    "trace_context": "%(trace_context)s::text",
    "status": "'ready'",
    "attempts": "0",
    "duplicates": "0",
    "checkpoints": "0",
    "last_error": "''",
    "cancel_requested_by": "''",
}
#: The same of one of many.
COLUMNS_OF_MANY = {
    **COLUMNS,
    "task_data": "each.task_data",
    "concurrency_key": "coalesce(each.concurrency_key, %(concurrency_key)s)",
    "concurrency_limit": "coalesce(each.concurrency_limit, %(concurrency_limit)s::smallint)",
}
ONE = """
INSERT INTO leasing_tasks_task ({columns}) VALUES ({values})
RETURNING id, created_at, scheduled_at, unique_until
"""
NOTIFYING = f"""
WITH new AS ({ONE})
SELECT new.*, pg_notify('{CHANNEL}', %(message)s) FROM new
"""
#: An INSERT that met a row would wait for the transaction that writes to it; the look sees what was
#: committed. Who comes between them, or has not committed yet, is left to the conflict.
UNLESS_PRESENT = """
INSERT INTO leasing_tasks_task ({columns}) SELECT {values}
WHERE NOT EXISTS (SELECT 1 FROM leasing_tasks_task WHERE unique_key = %(unique_key)s)
    AND NOT EXISTS (SELECT 1 FROM leasing_tasks_task WHERE idempotency_key = %(idempotency_key)s)
ON CONFLICT DO NOTHING
RETURNING id, created_at, scheduled_at, unique_until
"""
#: There are no keys and limits where the columns are the same for all.
MANY = """
WITH new AS (
    INSERT INTO leasing_tasks_task ({columns})
    SELECT {values}
    FROM ROWS FROM (
        jsonb_array_elements(%(task_data)s::jsonb),
        unnest(%(keys)s::text[]),
        unnest(%(limits)s::smallint[])
    ) WITH ORDINALITY AS each (task_data, concurrency_key, concurrency_limit, number)
    ORDER BY each.number
    RETURNING id, created_at, scheduled_at
)
SELECT array_agg(id ORDER BY id), min(created_at), min(scheduled_at) FROM new
"""
#: Rows that one statement carries, and characters: PostgreSQL holds 256 MB at most.
BATCH_ROWS = 5000
BATCH_TEXT = 2**24


def serves(model: type[Task], connection: BaseDatabaseWrapper) -> bool:
    """Return True if tasks can be stored so over ``connection``: it is PostgreSQL's, and no
    receiver is called for each instance that is saved."""
    return connection.vendor == "postgresql" and not any(
        # Most have none at all, and looking for those of a model takes a while.
        signal.receivers and signal.has_listeners(model)
        for signal in (pre_save, post_save)
    )


def one(
    model: type[Task],
    connection: BaseDatabaseWrapper,
    new: NewTask,
    message: str | None = None,
    *,
    unless_present: bool = False,
) -> Any:
    """Store the ``new`` task and return it.

    Args:
        model: The model of tasks.
        connection: The connection.
        new: The task.
        message: What the same statement sends to the workers of a task without a key.
        unless_present: True to return None if a row has one of its keys. It waits for none but
            those who are storing the same key.
    """
    columns, intervals, data, _ = new
    template = UNLESS_PRESENT if unless_present else ONE if message is None else NOTIFYING
    values = {**columns, **intervals, "task_data": data, "message": message}
    answer = _sent(connection, template, model, values)
    if answer is None:
        return None
    given = zip(("id", "created_at", "scheduled_at", "unique_until"), answer, strict=False)
    return instance_of(model, connection.alias, {**_blank(model), **columns, **dict(given)})


def many(
    model: type[Task], connection: BaseDatabaseWrapper, new: NewTasks, items: list[dict[str, Any]]
) -> Sequence[Task]:
    """Store a task for each of ``items``, its data, in their order, all or none. All are checked
    before the first is sent."""
    batches = [
        (data, text, [new.limit(each) for each in data] if new.limited_by_data else [])
        for start in range(0, len(items), BATCH_ROWS)
        for data, text in _batches(items[start : start + BATCH_ROWS])
    ]
    # Of each task what it does not have in common with all others.
    own: list[tuple[int, dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    with transaction.atomic(using=connection.alias) if len(batches) > 1 else nullcontext():
        for data, text, limits in batches:
            keys, created_at, scheduled_at = _sent(
                connection,
                MANY,
                model,
                {
                    **new.columns,
                    **new.intervals,
                    "task_data": text,
                    "keys": [each.get("concurrency_key", "") for each in limits],
                    "limits": [each.get("concurrency_limit") for each in limits],
                },
            )
            moments = {"created_at": created_at, "scheduled_at": scheduled_at}
            own += zip(keys, data, limits or repeat({}), repeat(moments))

    blank = {**_blank(model), **new.columns}

    def make(number: int) -> Task:
        key, data, limit, moments = own[number]
        own_columns = {"id": key, "task_data": data, **limit, **moments}
        task: Task = instance_of(model, connection.alias, {**blank, **own_columns})
        return task

    return StoredTasks(len(own), make)


class StoredTasks(Sequence["Task"]):
    """The tasks ``make`` makes of the numbers below ``count``, each once, when it is looked at:
    an instance costs as much as storing its row."""

    def __init__(self, count: int, make: Callable[[int], Task]) -> None:
        self._made: list[Task | None] = [None] * count
        self._make = make

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._make(range(len(self))[index])
        return made

    def __repr__(self) -> str:
        return f"<{len(self)} stored tasks>"


def _batches(items: list[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """The data of tasks as it is stored, and its JSON text, in parts that fit into a statement."""
    items, text = dumped_many(items)
    if len(text) <= BATCH_TEXT or len(items) == 1:
        yield items, text
    else:
        middle = len(items) // 2
        yield from _batches(items[:middle])
        yield from _batches(items[middle:])


def _sent(connection: Any, template: str, model: type[Task], values: dict[str, Any]) -> Any:
    """Return the one row that the statement answers with, if any."""

    def make() -> str:
        columns = COLUMNS_OF_MANY if template is MANY else COLUMNS
        values = ", ".join(columns.values()).format(now=moment(DbNow, connection))
        return template.format(columns=", ".join(columns), values=values)

    # Of a statement that fails in a transaction the block is to hear, as of one of Django's.
    guard = (
        transaction.mark_for_rollback_on_error(connection.alias)
        if connection.in_atomic_block
        else nullcontext()
    )
    with guard:
        statement = cached_statement(template, make)
        once = len(values["task_data"]) > LONG_VALUE
        rows = fetch_all(connection, statement, {**_nothing(model), **values}, once=once)
    return rows[0] if rows else None


@cache
def _blank(model: type[Task]) -> dict[str, Any]:
    """The columns of a new instance."""
    blank = model()
    return {field.attname: getattr(blank, field.attname) for field in model._meta.concrete_fields}


@cache
def _nothing(model: type[Task]) -> dict[str, Any]:
    """The values of a statement for which nothing is given."""
    return {**_blank(model), "scheduled_at": None, "delay": "0", "window": None}
