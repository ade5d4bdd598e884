"""A claimed task as a worker carries it: the columns that running it needs, and no more.

A model instance of a task costs more than running a short one. It is made when somebody asks
for it, and reads the columns that the claim did not bring when they are looked at.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import Error

from leasing.db.routing import database_of
from leasing.functions import EPOCH
from leasing.runtime.events import is_heard
from leasing.runtime.terminal import TASKS
from tasks.log import log

if TYPE_CHECKING:
    from tasks.models import Task

#: The columns that a claim returns for each task in addition to its data, in their order.
COLUMNS = (
    "id",
    "name",
    "queue",
    "kind",
    "attempts",
    "max_attempts",
    "timeout",
    "progress_timeout",
    "concurrency_key",
    "grant_id",
    "fencing_token",
    "priority",
)
#: Further columns for tasks whose handler has an ``on_end`` (``registry.observed``). Timestamps are
#: returned as numbers, which is much faster, and converted when they are used.
REPORTED_COLUMNS = ("created_at", "started_at")
#: Further columns if tasks are traced.
TRACED_COLUMNS = ("trace_context",)
#: The columns that are the same for all tasks of one claim.
OF_TERM = ("holder", "ttl", "acquired_at", "expires_at")


def is_traced() -> bool:
    """Return True if tasks are traced, which needs TRACED_COLUMNS."""
    return is_heard("attempt.begun")


@dataclass(frozen=True, slots=True)
class ClaimTerm:
    """The columns that the tasks of one claim have in common."""

    holder: str
    ttl: timedelta
    acquired_at: datetime
    expires_at: datetime
    #: The database's clock when it answered ...
    now: datetime
    #: ... a request that was sent at this moment on the holder's clock.
    sent_at: float
    #: The database it was sent to.
    using: str
    #: ``ttl`` in seconds, and the moment on the holder's clock at which the grants end if they are
    #: never renewed.
    seconds: float = field(init=False)
    granted_until: float = field(init=False)

    def __post_init__(self) -> None:
        left = (self.expires_at - self.now).total_seconds()
        object.__setattr__(self, "seconds", self.ttl.total_seconds())
        object.__setattr__(self, "granted_until", self.sent_at + left)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def _microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - EPOCH) // timedelta(microseconds=1)


@contextmanager
def keeping(granted: Sized) -> Iterator[None]:
    """Looks for more than what was ``granted``. If that fails, there is what there is: else
    nobody would know of it before its lease has run out. Raises Error where there is nothing."""
    try:
        yield
    except Error as error:
        if not len(granted):
            raise
        log.worker_claim_failed(error=error)


def resource_of(key: int) -> str:
    """Return the name of the leased resource for the task of this ``key``, in the API and on
    pages."""
    return f"{TASKS}{key}"


def waited(task: Task) -> float | None:
    """Return for how many seconds the just claimed ``task`` had been due; None for one that was
    taken or given back without a pause, whose wait was counted at its first claim."""
    due, started, claimed = task.scheduled_at, task.started_at, task.acquired_at
    if claimed is None or started is None or not (started >= claimed or due > started):
        return None
    return max(0.0, (claimed - due).total_seconds())


@dataclass(slots=True, eq=False, repr=False)
class ClaimedTask:
    """A task under a fresh grant. Once it was completed as it was claimed it reads as the row then
    does, as far as it is known here."""

    term: ClaimTerm
    task_data: dict[str, Any]
    id: int
    name: str
    queue: str
    kind: int
    attempts: int
    max_attempts: int
    timeout: timedelta | None
    progress_timeout: timedelta | None
    concurrency_key: str
    #: ``grant_id`` as text, which is all that a task needs that is never renewed.
    grant: str
    fencing_token: int
    priority: int
    # In microseconds since 1970.
    _created: int | None = None
    _started: int | None = None
    _waited: int | None = None
    #: Brought where tasks are traced.
    trace_context: str | None = None
    _task: Task | None = field(default=None, init=False)
    #: Its output, and the moment of its end in microseconds since 1970; None while it runs.
    ended_with: tuple[Any, int] | None = field(default=None, init=False)

    #: By the names of a ``Task``.
    pk = property(attrgetter("id"))
    data = property(attrgetter("task_data"))
    holder = property(attrgetter("term.holder"))
    ttl = property(attrgetter("term.ttl"))
    acquired_at = property(attrgetter("term.acquired_at"))
    expires_at = property(attrgetter("term.expires_at"))
    now = property(attrgetter("term.now"))
    #: The holder's clock before the claim was sent, and the database that it was sent to.
    sent_at = property(attrgetter("term.sent_at"))
    using = property(attrgetter("term.using"))

    @property
    def grant_id(self) -> uuid.UUID:
        return uuid.UUID(self.grant)

    @property
    def task(self) -> Task:
        """The model instance of this term: a copy under its grant where the handler has read that
        which it got again, which may be under the grant of somebody else by now."""
        if self._task is not None and str(self._task.grant_id) != str(self.grant):
            self._task = copy(self._task)
            self._task.grant_id, self._task.holder = self.grant_id, self.holder
            self._task.fencing_token = self.fencing_token
        if self._task is None:
            self._task = self._instance(**{name: getattr(self.term, name) for name in OF_TERM})
        return self._task

    @property
    def ended_task(self) -> Task:
        """An instance of the row once it was completed; the ``task`` while it runs."""
        if self.ended_with is None:
            return self.task
        # The end of its lease is not known here: a renewal may have moved it.
        of_term = {name: getattr(self.term, name) for name in OF_TERM if name != "expires_at"}
        ended = {name: getattr(self, name) for name in ("task_output", "processed_at")}
        return self._instance(**of_term, **ended, released_at=self.processed_at)

    def _instance(self, **more: Any) -> Task:
        model: type[Task] = apps.get_model("leasing_tasks", "Task")
        brought = (*COLUMNS, *REPORTED_COLUMNS) if self.can_be_reported else COLUMNS
        own = {name: getattr(self, name) for name in ("task_data", "status", *brought)}
        columns = {**own, **more}
        # Django wants them in the model's order.
        names = [f.attname for f in model._meta.concrete_fields if f.attname in columns]
        task = model.from_db(self.using, names, [columns[name] for name in names])
        task.now, task.sent_at = self.now, self.sent_at
        return task

    # Its end, by the names of a ``Task``

    @property
    def status(self) -> str:
        return "running" if self.ended_with is None else "succeeded"

    @property
    def task_output(self) -> Any:
        """What the database has of it: a copy, a tuple is a list there."""
        return None if self.ended_with is None else json.loads(json.dumps(self.ended_with[0]))

    @property
    def processed_at(self) -> datetime | None:
        return None if self.ended_with is None else _moment(self.ended_with[1])

    result = task_output
    finished_at = processed_at

    @property
    def can_be_reported(self) -> bool:
        """Return True if the claim brought REPORTED_COLUMNS."""
        return self._created is not None

    @property
    def created_at(self) -> datetime | None:
        return _moment(self._created) if self.can_be_reported else self.task.created_at

    @property
    def started_at(self) -> datetime | None:
        return _moment(self._started) if self.can_be_reported else self.task.started_at

    @property
    def waited(self) -> float | None:
        """The seconds for which it had been due when it was claimed. None if that is unknown (the
        claim returns it only if claims are counted), or was counted at an earlier claim."""
        return None if self._waited is None else self._waited / 1_000_000

    @classmethod
    def held(cls, task: Task) -> Self:
        """``task``, read by its holder with COLUMNS, those of its term, and ``now``: to end it."""
        return cls._under(task, {}, 0.0)

    @classmethod
    def of(cls, task: Task) -> Self:
        """``task``, which was just claimed."""
        claimed = cls._under(task, task.task_data, task.sent_at)
        if not task.get_deferred_fields():
            claimed._created = _microseconds(task.created_at)
            claimed._started = _microseconds(task.started_at)
            seconds = waited(task)
            claimed._waited = None if seconds is None else round(seconds * 1_000_000)
        if is_traced():
            claimed.trace_context = task.trace_context
        return claimed

    @classmethod
    def taken(cls, task: Task) -> Self:
        """``of``, without the instance: what a handler finds in its own is the same wherever the
        task was claimed."""
        claimed = cls.of(task)
        claimed._task = None
        return claimed

    @classmethod
    def _under(cls, task: Task, task_data: dict[str, Any], sent_at: float) -> Self:
        """Return the term of ``task`` with what the row has of COLUMNS."""
        of_term: dict[str, Any] = {name: getattr(task, name) for name in (*OF_TERM, "now")}
        columns = {name: getattr(task, name) for name in COLUMNS}
        columns["grant_id"] = str(task.grant_id)
        term = ClaimTerm(**of_term, sent_at=sent_at, using=database_of(task))
        claimed = cls(term, task_data, *columns.values())
        claimed._task = task
        return claimed


class Taken(list[ClaimedTask]):
    """The tasks that a claim got."""

    #: True if there is probably more: it got as many as it asked for, or came past tasks that are
    #: claimed for a free slot alone.
    has_more = False


def instance_of(task: Task | ClaimedTask) -> Task:
    """Return the model instance of ``task``, as it is now."""
    return task.ended_task if isinstance(task, ClaimedTask) else task
