"""Routes of the holders of many tasks: complete, fail and heartbeat, with an answer for each.

A malformed request is refused as a whole. Any other error of one task is the answer for that task,
with the status of a single request, and the other tasks go on. All tasks are read by one query and
written together.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from django.http import HttpRequest
from ninja import Router
from ninja.errors import HttpError

from leasing.api.errors import BAD_BODY, answers
from leasing.api.principals import principal_of
from leasing.db.row_reader import read_by
from leasing.exceptions import LeaseLost
from leasing.functions import DbNow
from leasing.store import Reason, Renewal, Why
from leasing.validation.names import check_name
from tasks.api.batch_schemas import (
    Completions,
    Ended,
    EndedMany,
    Failures,
    HeartbeatResult,
    HeartbeatResults,
    Heartbeats,
    Many,
    One,
    Returns,
)
from tasks.api.errors import refusal_of
from tasks.api.holders import failure, is_completed, may_change, why_refused
from tasks.api.rows import tasks, tasks_of
from tasks.models import Task, TaskStatus
from tasks.querysets.claimed import COLUMNS, OF_TERM, ClaimedTask

router = Router(tags=["tasks"])

#: Columns by which a request for a task is accepted or refused.
TERM = ("id", "status", "grant_id", "fencing_token", "released_at", *OF_TERM)


#: The reason why a heartbeat came too late for a task that its holder has ended.
ENDED = Reason(Why.ENDED, "its holder has ended it")

#: The reason why a task of a batch is not written: a status and a text.
Refusal = tuple[int, str]
Item = TypeVar("Item", bound=One)


@router.put(
    "/tasks/heartbeat",
    auth=may_change,
    response=answers({200: HeartbeatResults}, *BAD_BODY),
)
def heartbeat_tasks(request: HttpRequest, body: Heartbeats) -> HeartbeatResults:
    """Renew the leases of several tasks: each deadline is one ttl from now."""
    batch = Batch(request, body, body.tasks, columns=TERM)
    grants = {key: task.grant_id for key, task in batch.held.items() if task.grant_id}
    renewed = tasks().renew_many(grants)
    terms: dict[int, Renewal] = dict(renewed.renewed)
    unrenewed = [task for key, task in batch.held.items() if key not in terms]
    ended = grants_ended_by_holders(unrenewed) if unrenewed else set()
    # The others are lost, or locked: a heartbeat for one task waits for the lock, and records its
    # refusal.
    for task in unrenewed:
        if task.grant_id in ended:
            batch.refuse(task, LeaseLost(task.lease_resource, ENDED))
        elif batch.call(task, tasks().heartbeat) and task.renewed_at is not None:
            task.now = task.renewed_at
            terms[task.pk] = task.renewal_now()
    return HeartbeatResults(
        results=[
            HeartbeatResult(
                id=key,
                status=202,
                ttl=batch.held[key].ttl.total_seconds(),
                remaining=terms[key].remaining,
                yield_to=terms[key].yield_to,
                is_last=terms[key].is_last,
            )
            if refusal is None
            else HeartbeatResult(**refused(key, refusal))
            for key, refusal in batch.answers()
        ]
    )


@router.put(
    "/tasks/complete",
    auth=may_change,
    response=answers({200: EndedMany}, *BAD_BODY),
)
def complete_tasks(request: HttpRequest, body: Completions) -> EndedMany:
    """Complete several tasks and store their outputs: on PostgreSQL in one statement."""
    batch = Batch(request, body, body.tasks, columns=(*TERM, *COLUMNS))

    def output_of(task: Task) -> Any:
        return batch.item_of(task).task_output

    def is_repetition(task: Task) -> bool:
        item = batch.item_of(task)
        return item.lease_key is not None and is_completed(task, item.task_output)

    for task in batch.late():
        if not is_repetition(task):
            batch.call(task, lambda task: tasks().complete(task, output_of(task), unexpired=True))
    outputs = [
        (ClaimedTask.held(task), output_of(task))
        for task in batch.in_time()
        if not is_repetition(task)
    ]
    for claimed, error in tasks().complete_claimed(outputs):
        batch.refuse(claimed.task, error)
    return batch.ended(lambda task: TaskStatus.SUCCEEDED.value)


@router.put(
    "/tasks/fail",
    auth=may_change,
    response=answers({200: EndedMany}, *BAD_BODY),
)
def fail_tasks(request: HttpRequest, body: Failures) -> EndedMany:
    """Fail the current attempt of several tasks. Each is retried, unless that was its last
    attempt."""
    batch = Batch(request, body, body.tasks)

    def error_of(task: Task) -> str:
        item = batch.item_of(task)
        return failure(item.error, item.retry)

    for task in batch.late():
        batch.call(task, lambda task: tasks().fail(task, error_of(task), unexpired=True))
    failed = [(task, error_of(task)) for task in batch.in_time()]
    _, lost = tasks().fail_many(failed)
    for task, error in lost:
        batch.refuse(task, error)
    return batch.ended(lambda task: task.status)


@router.put(
    "/tasks/give-back",
    auth=may_change,
    response=answers({200: EndedMany}, *BAD_BODY),
)
def give_back_tasks(request: HttpRequest, body: Returns) -> EndedMany:
    """Make several tasks ready again without spending their attempts."""
    batch = Batch(request, body, body.tasks)
    together: defaultdict[tuple[str, bool], list[Task]] = defaultdict(list)
    for task in batch.held.values():
        item = batch.item_of(task)
        if item.delay:
            give_back = partial(
                tasks().give_back,
                reason=item.reason,
                delay=timedelta(seconds=item.delay),
                begun=item.begun,
            )
            batch.call(task, give_back)
        else:
            together[item.reason, item.begun].append(task)
    for (reason, begun), held in together.items():
        _, lost = tasks().give_back_many(held, reason, begun=begun)
        for task, error in lost:
            batch.refuse(task, error)
    return batch.ended(lambda task: task.status)


class Batch(Generic[Item]):
    """The tasks of a request: each is held by its client, or refused.

    Args:
        request: The request.
        body: Its body.
        items: The items of the body, one for each task.
        columns: The columns to read of each; all but the payload by default.
    """

    def __init__(
        self, request: HttpRequest, body: Many, items: Sequence[Item], columns: Sequence[str] = ()
    ) -> None:
        self._items = items
        self._refused: dict[int, Refusal] = {}
        processor = None if body.processor is None else check_name(body.processor, "processor")
        rows = {task.pk: task for task in _read(request, {each.id for each in items}, columns)}
        #: The tasks that the request may write, by their keys.
        self.held: dict[int, Task] = {}
        #: The places of these tasks in the request.
        self._places: dict[int, int] = {}
        for place, each in enumerate(items):
            task = rows.get(each.id)
            if each.id in self.held:
                self._refused[place] = 400, f"Task {each.id} is named twice."
            elif refusal := _refusal_to(each, task, processor):
                self._refused[place] = refusal
            else:
                assert task is not None
                self.held[each.id] = task
                self._places[each.id] = place

    def item_of(self, task: Task) -> Item:
        """Return the item of the request for ``task``, which is held; not a refused item that names
        it again."""
        return self._items[self._places[task.pk]]

    def in_time(self) -> list[Task]:
        """Return the held tasks whose deadline lay ahead when they were read. The time of the read
        decides: until the grant is revoked, the holder's write counts."""
        return [task for task in self.held.values() if task.expires_at > task.now]

    def late(self) -> list[Task]:
        """Return the other held tasks, for which the verb records its refusal."""
        return [task for task in self.held.values() if task.expires_at <= task.now]

    def call(self, task: Task, verb: Callable[[Task], object]) -> bool:
        """Call ``verb`` for one task alone. Returns False if that is refused."""
        try:
            verb(task)
        except Exception as error:
            self.refuse(task, error)
            return False
        return True

    def refuse(self, task: Task, error: Exception) -> None:
        """Answer that ``task`` was not written. Raises ``error`` if it is not about that task."""
        refusal = refusal_of(error)
        if refusal is None:
            raise error
        self._refused[self._places[task.pk]] = refusal

    def ended(self, state_of: Callable[[Task], str]) -> EndedMany:
        """Return the answers for tasks that were ended, each with its present state."""
        return EndedMany(
            results=[
                Ended(id=key, status=202, state=state_of(self.held[key]))
                if refusal is None
                else Ended(**refused(key, refusal))
                for key, refusal in self.answers()
            ]
        )

    def answers(self) -> Iterable[tuple[int, Refusal | None]]:
        """Return the keys in their order, each with its refusal; None: the task was written."""
        return [(each.id, self._refused.get(place)) for place, each in enumerate(self._items)]


def grants_ended_by_holders(held: Iterable[Task]) -> set[uuid.UUID | None]:
    """Return the grants of ``held`` that their own holders have ended meanwhile. A heartbeat that
    such a holder had on its way is not a late write, which would be reported to operators."""
    rows = tasks().filter(pk__in=[task.pk for task in held]).ended_by_holders()
    return set(rows.values_list("grant_id", flat=True))


def _read(request: HttpRequest, keys: set[int], columns: Sequence[str]) -> Iterable[Task]:
    """Return the tasks with these keys that the client may use, with the database's clock as
    ``now``; without ``columns``, all but the payload of each."""
    rows = tasks_of(request)
    if columns and principal_of(request).queues is None:
        return read_by(Task, rows.db, "pk", keys, frozenset(columns))
    rows = rows.only(*columns) if columns else rows.defer("task_data", "task_output")
    read: Iterable[Task] = rows.filter(pk__in=keys).annotate(now=DbNow())
    return read


def _refusal_to(item: One, task: Task | None, processor: str | None) -> Refusal | None:
    """Return why a request may not write a task; None if it may."""
    if item.lease_key is None and processor is None:
        return 400, "Give the processor, or the lease_key."
    try:
        notice = why_refused(item.id, task, item.lease_key, processor)
    except HttpError as error:
        return error.status_code, str(error)
    return (200, notice) if notice else None


def refused(key: int, refusal: Refusal) -> Mapping[str, Any]:
    """Return the fields of an answer that refuses a task."""
    status, text = refusal
    return {"id": key, "status": status, ("message" if status < 400 else "error"): text}
