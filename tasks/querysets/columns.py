"""The columns of a new task: what the caller says, then its handler, then the settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Unpack

from leasing.db.routing import database_of
from leasing.functions import after
from leasing.validation.names import check_name
from leasing.validation.values import check_moment
from tasks import registry
from tasks.conf import task_settings
from tasks.delays import check_interval, check_limit
from tasks.payload import check_arguments, dumped_data
from tasks.producer import ManyOptions, Parent
from tasks.querysets.base import (
    COMPENSATION_KEYS,
    PRIORITIES,
    TaskRows,
    check_between,
    check_queue,
)
from tasks.querysets.unique import OnDuplicate, UniqueFor, lifetime
from tasks.registry import Handler


class NewTask(NamedTuple):
    """A task to be stored: all columns that differ from the model's defaults, and the text of the
    data."""

    columns: dict[str, Any]
    data: str


class NewTasks(NamedTuple):
    """Tasks with ``columns`` in common, that have different data and perhaps limits."""

    handler: Handler
    columns: dict[str, Any]
    concurrency_key: str | None
    concurrency_limit: int | None

    def limit(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the concurrency columns of the task with ``data``."""
        return _limit(self.handler, data, self.concurrency_key, self.concurrency_limit)

    @property
    def limited_alike(self) -> bool:
        """Return True if the limits do not depend on the data."""
        return self.concurrency_key is not None or not self.handler.concurrency_key


def new_task(
    rows: TaskRows,
    name_or_handler: str | Callable[..., Any],
    data: dict[str, Any] | None,
    *,
    unique_key: str | None = None,
    unique_for: str | float | timedelta = UniqueFor.FINISHED.value,
    on_duplicate: str = OnDuplicate.SKIP.value,
    idempotency_key: str | None = None,
    **options: Unpack[ManyOptions],
) -> NewTask:
    """Return the row that ``enqueue`` stores for its arguments, checked; see there."""
    new = new_tasks(rows, name_or_handler, **options)
    checked, text = dumped_data(data)
    check_arguments(new.handler.parameters, checked)
    columns = {**new.columns, "task_data": checked, **new.limit(checked)}
    if (
        unique_key is not None
        or idempotency_key is not None
        or unique_for != UniqueFor.FINISHED
        or on_duplicate != OnDuplicate.SKIP
    ):
        columns |= _keys(unique_key, unique_for, on_duplicate, idempotency_key)
    return NewTask(columns, text)


def new_tasks(
    rows: TaskRows,
    name_or_handler: str | Callable[..., Any],
    *,
    queue: str | None = None,
    priority: int = 0,
    scheduled_at: datetime | None = None,
    delay: float | timedelta | None = None,
    max_attempts: int | None = None,
    timeout: float | timedelta | None = None,
    progress_timeout: float | timedelta | None = None,
    concurrency_key: str | None = None,
    concurrency_limit: int | None = None,
    parent: Parent | None = None,
) -> NewTasks:
    """Return the columns that tasks with these options have in common, checked."""
    handler = registry.find(name_or_handler)
    if max_attempts is None:
        max_attempts = handler.max_attempts or task_settings.MAX_ATTEMPTS
    columns = {
        "name": handler.name,
        "kind": handler.kind.number,
        "queue": check_queue(queue or handler.queue),
        "priority": check_between(priority, *PRIORITIES, "priority"),
        "max_attempts": check_between(max_attempts, 1, 32767, "max_attempts"),
        "timeout": handler.timeout if timeout is None else check_limit(timeout, "The timeout"),
        "progress_timeout": (
            handler.progress_timeout
            if progress_timeout is None
            else check_limit(progress_timeout, "The progress_timeout")
        ),
        **_start(scheduled_at, delay),
    }
    if handler.compensate is not None:
        columns["compensation"] = handler.compensate
    if parent is not None:
        columns["parent_id"] = _parent_key(rows, parent)
    return NewTasks(handler, columns, concurrency_key, concurrency_limit)


def _parent_key(rows: TaskRows, parent: Parent) -> int:
    """Return the key of ``parent``, a task, a key or a context. Raises ValueError if it isn't
    stored, or not where the child is going to be."""
    if isinstance(parent, int):
        return check_between(parent, 1, 2**63 - 1, "parent's key")
    task: Any = getattr(parent, "task", parent)
    if task.pk is None:
        raise ValueError("The parent is not stored: enqueue it before its children.")
    if (using := database_of(task)) != rows.db:
        raise ValueError(f"{task} is in the database {using!r}, and its child in {rows.db!r}.")
    key: int = task.pk
    return key


def _start(scheduled_at: datetime | None, delay: float | timedelta | None) -> dict[str, Any]:
    if delay is not None:
        if scheduled_at is not None:
            raise ValueError("Give scheduled_at or delay, not both.")
        return {"scheduled_at": after(check_interval(delay, "The delay"))}
    if scheduled_at is None:
        return {}
    return {"scheduled_at": check_moment(scheduled_at, "scheduled_at")}


def _keys(
    unique_key: str | None,
    unique_for: str | float | timedelta,
    on_duplicate: str,
    idempotency_key: str | None,
) -> dict[str, Any]:
    if on_duplicate not in OnDuplicate.values:
        raise ValueError(f"on_duplicate must be one of {', '.join(OnDuplicate.values)}.")
    keys: dict[str, Any] = {}
    if idempotency_key is not None:
        if on_duplicate != OnDuplicate.SKIP:
            # Sent again it would meet no row of its own, and so replace once more.
            raise ValueError("An idempotency_key requires on_duplicate='skip'.")
        keys["idempotency_key"] = check_name(idempotency_key, "idempotency key")
        if idempotency_key.startswith(COMPENSATION_KEYS):
            raise ValueError(
                f"Idempotency keys that begin with {COMPENSATION_KEYS!r} are reserved for"
                f" compensations: {idempotency_key!r}."
            )
    if unique_key is not None:
        keys["unique_key"] = keys["enqueued_key"] = check_name(unique_key, "unique key")
        keys |= lifetime(unique_for)
    elif on_duplicate != OnDuplicate.SKIP or unique_for != UniqueFor.FINISHED:
        raise ValueError("unique_for and on_duplicate need a unique_key.")
    return keys


def _limit(
    handler: Handler, data: dict[str, Any], key: str | None, limit: int | None
) -> dict[str, Any]:
    if key is None:
        key = _formatted(handler, data)
    if limit is not None:
        check_between(limit, 1, 32767, "concurrency_limit")
    if not key:
        if limit is not None:
            raise ValueError("A concurrency_limit needs a concurrency_key.")
        return {}
    return {
        "concurrency_key": check_name(key, "concurrency key"),
        "concurrency_limit": limit or handler.concurrency_limit or 1,
    }


def _formatted(handler: Handler, data: dict[str, Any]) -> str:
    """The handler's concurrency key for ``data``."""
    if not handler.concurrency_key:
        return ""
    try:
        return handler.concurrency_key.format(**(handler.key_defaults | data))
    except (LookupError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(
            f"The arguments of {handler.name} do not fit its concurrency key"
            f" {handler.concurrency_key!r}: {error!r}"
        ) from error
