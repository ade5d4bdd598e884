"""Every conditional update on tasks.

What each verb demands of the row, beside its key:

    claim           ready, and its time has come
    heartbeat       this grant, running, the deadline ahead
    complete, fail  this grant, running (and the deadline ahead, where the caller asks)
    give_back       this grant, running
    recover         running, the deadline passed, the grant that was read
    revoke          running, the grant that was read
    retry           failed or cancelled

Complete and fail need no clock: while the grant is the row's and the row is running, nobody
else has had the task. Rows are locked first and updated second (see ``leasing.querysets``).
"""

from __future__ import annotations

import random
import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import IntegrityError, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Greatest, Least
from django.dispatch import Signal
from django.utils.timezone import is_naive

from leasing.claim import Claim
from leasing.clock import clock
from leasing.dialects import after_commit, durable, lock, refuse_transaction
from leasing.functions import DbNow, after, next_token
from leasing.names import check_name
from leasing.querysets import LeasableQuerySet
from leasing.terms import Terms
from tasks import registry, signals
from tasks.conf import task_settings
from tasks.exceptions import GiveUp, UnknownQueue
from tasks.payload import check_data, check_json
from tasks.retry import backoff

if TYPE_CHECKING:
    from tasks.models import Task

#: How many rows one recovery transaction takes.
SWEEP_BATCH = 100
#: When this process last looked for stuck tasks, by database, on the holder's clock.
_swept_at: dict[str, float] = {}

#: How many rows one INSERT carries.
INSERT_BATCH = 500


class TaskStatus(models.TextChoices):
    """Where a task is. Delayed tasks and those waiting for a retry are ready, later."""

    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @classmethod
    def ended(cls) -> list[str]:
        """The states that nothing but an operator's retry leaves."""
        return [cls.SUCCEEDED.value, cls.FAILED.value, cls.CANCELLED.value]


class TaskQuerySet(LeasableQuerySet["Task"]):
    """Tasks: ``Task.objects``."""

    keeps_events = False  # TaskAttempt is their ledger.
    renewing = "heartbeat"

    #: How often to try to enqueue while the task that has the unique key comes and goes.
    TRIES = 3

    # By state

    def ready(self) -> Self:
        """Tasks that a worker could claim now."""
        return self.filter(status=TaskStatus.READY, scheduled_at__lte=DbNow())

    def scheduled(self) -> Self:
        """Tasks whose time has not come: delayed, or waiting for a retry."""
        return self.filter(status=TaskStatus.READY, scheduled_at__gt=DbNow())

    def running(self) -> Self:
        """Tasks that a worker has claimed; stuck ones too."""
        return self.filter(status=TaskStatus.RUNNING)

    def stuck(self) -> Self:
        """Running tasks whose holder let the deadline pass."""
        return self.running().filter(expires_at__lte=DbNow())

    def succeeded(self) -> Self:
        return self.filter(status=TaskStatus.SUCCEEDED)

    def failed(self) -> Self:
        """Dead letters: attempts exhausted, or given up."""
        return self.filter(status=TaskStatus.FAILED)

    def cancelled(self) -> Self:
        return self.filter(status=TaskStatus.CANCELLED)

    # Enqueue

    def enqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
    ) -> Task:
        """Store a task, as part of the caller's transaction if there is one.

        ``data`` are the handler's keyword arguments. Higher ``priority`` (-32768 to 32767) goes
        first; it is not started before ``scheduled_at``. While a task with the same
        ``unique_key`` has not ended, that task is returned and nothing is stored.

        Raises UnknownTask, UnknownQueue, NotSerializable, InvalidResource (the key), ValueError.
        """
        rows = self.home()
        task = rows._build(
            name_or_handler,
            data,
            queue=queue,
            priority=priority,
            scheduled_at=scheduled_at,
            unique_key=unique_key,
            max_attempts=max_attempts,
        )
        if unique_key is not None:
            return rows._enqueue_unless_present(task)
        task.save(using=rows.db, force_insert=True)
        rows._announce([task])
        return task

    def enqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        *,
        queue: str | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> list[Task]:
        """Store one task for each of ``data``, all or none. See ``enqueue``."""
        rows = self.home()
        tasks = [
            rows._build(
                name_or_handler,
                each,
                queue=queue,
                priority=priority,
                scheduled_at=scheduled_at,
                max_attempts=max_attempts,
            )
            for each in data
        ]
        with transaction.atomic(using=rows.db):
            rows._everything().bulk_create(tasks, batch_size=INSERT_BATCH)
        rows._announce(tasks)
        return tasks

    def _build(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None,
        *,
        queue: str | None,
        priority: int,
        scheduled_at: datetime | None,
        max_attempts: int | None,
        unique_key: str | None = None,
    ) -> Task:
        handler = registry.find(name_or_handler)
        if max_attempts is None:
            max_attempts = handler.max_attempts or task_settings.MAX_ATTEMPTS
        fields: dict[str, Any] = {}
        if scheduled_at is not None:
            if is_naive(scheduled_at):
                raise ValueError("scheduled_at must have a time zone.")
            fields["scheduled_at"] = scheduled_at
        if unique_key is not None:
            fields["unique_key"] = check_name(unique_key, "unique key")
        return self.model(
            name=handler.name,
            queue=check_queue(queue or handler.queue),
            task_data=check_data(data),
            priority=check_between(priority, -32768, 32767, "priority"),
            max_attempts=check_between(max_attempts, 1, 32767, "max_attempts"),
            **fields,
        )

    def _enqueue_unless_present(self, task: Task) -> Task:
        """Store ``task``, or count it as a duplicate of the one that has its key."""
        for _ in range(self.TRIES):
            try:
                with transaction.atomic(using=self.db):
                    task.save(using=self.db, force_insert=True)
            except IntegrityError as error:
                refused = error
            else:
                self._announce([task])
                return task
            present = self._everything().filter(unique_key=task.unique_key).first()
            if present is not None:
                self._count_duplicate(present)
                return present
            # It ended in between, and its key is free again.
        raise refused

    def _count_duplicate(self, task: Task) -> None:
        """Count what ``task`` turned away, once the caller's transaction has ended: the row of a
        running task stays free for its heartbeats meanwhile."""

        def count() -> None:
            self._everything().filter(pk=task.pk).update(duplicates=F("duplicates") + 1)
            signals.send(signals.duplicate, task)

        task.is_duplicate = True
        task.duplicates += 1
        after_commit(self.db, count)

    def _announce(self, tasks: Sequence[Task]) -> None:
        if signals.enqueued.has_listeners(self.model):
            for task in tasks:
                self._tell(signals.enqueued, task)

    # Claim

    def claim(  # type: ignore[override]
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
    ) -> Claim[Task]:
        """Lease up to ``limit`` ready tasks of ``queues`` (None: all) to ``holder``, for ``ttl``
        seconds from now and from each heartbeat.

        Higher priority goes first, then the longest due. Which queue is looked at first is
        drawn by lot, so that a full one does not starve the others. When this process has not
        looked for stuck tasks for SWEEP_EVERY, it does so first: a site whose only workers are
        remote ones recovers too.

        Raises UnknownQueue, InvalidResource (the holder), InvalidTTL, LeaseInTransaction.
        """
        terms = Terms.check(holder=check_name(holder, "holder"), ttl=ttl)
        names = [check_queue(queue) for queue in queues or task_settings.QUEUES]
        random.shuffle(names)
        rows = self.home()
        rows._sweep_if_due()
        granted: list[tuple[Task, str]] = []
        with durable(rows.db):
            for queue in names:
                if len(granted) < limit:
                    ready = rows.filter(queue=queue).order_by("-priority", "scheduled_at", "id")
                    granted += ready._grant_locked(terms, limit - len(granted))
        return Claim(rows._tell_granted(granted), rows.store(terms))

    def _sweep_if_due(self) -> None:
        refuse_transaction(self.db)
        if clock() - _swept_at.get(self.db, 0.0) >= task_settings.SWEEP_EVERY:
            self._everything().recover()

    def _tell_granted(self, granted: list[tuple[Task, str]]) -> list[Task]:
        for task, _ in granted:
            signals.send(signals.claimed, task)
        return [task for task, _ in granted]

    def available(self) -> Self:
        return self.ready()

    def granting(self, terms: Terms) -> dict[str, Any]:
        return super().granting(terms) | {
            "status": TaskStatus.RUNNING,
            "attempts": F("attempts") + 1,
            "started_at": Coalesce(F("started_at"), DbNow()),
        }

    # Holder verbs

    def holding(self) -> Self:
        return self.filter(status=TaskStatus.RUNNING)

    def heartbeat(self, task: Task) -> Task:
        """Move the deadline of a running task to its ttl from now. Raises LeaseLost."""
        return self.renew(task)

    def complete(self, task: Task, output: Any = None, *, unexpired: bool = False) -> Task:
        """Store ``output`` and end the task well, as part of the caller's transaction if there
        is one. ``unexpired`` also demands that the deadline has not passed.

        Raises LeaseLost when the task is no longer this grant's (the output is dropped, and the
        attempt remembers it), NotSerializable.
        """
        rows = self.home()
        check_json(output, "output")
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            mine = rows._of_grant(task)
            done = (mine.unexpired() if unexpired else mine).update(
                status=TaskStatus.SUCCEEDED,
                task_output=output,
                **_ending(),
            )
            if done:
                task.refresh_from_db(using=rows.db)
        if not done:
            raise rows._refuse(task, "complete")
        rows._tell(signals.completed, task)
        return task

    def fail(self, task: Task, error: BaseException | str, *, unexpired: bool = False) -> Task:
        """End this attempt badly: the task is tried again after a pause that grows, until its
        attempts are used up or the error is a GiveUp. Then it is dead. Raises LeaseLost.
        """
        rows = self.home()
        text, trace = _describe(error)
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            mine = rows._of_grant(task)
            if unexpired:
                mine = mine.unexpired()
            again = mine.filter(attempts__lt=F("max_attempts"))
            attempt = _attempt_model().of(task, "failed", text, trace)
            failed = not isinstance(error, GiveUp) and again.update(
                last_error=text,
                **_waiting(_pause(task.attempts)),
            )
            dead = not failed and mine.update(
                status=TaskStatus.FAILED, last_error=text, **_ending()
            )
            if failed or dead:
                attempt.save(using=rows.db, force_insert=True)
                task.refresh_from_db(using=rows.db)
        if not (failed or dead):
            raise rows._refuse(task, "fail")
        rows._tell(signals.dead if dead else signals.failed, task, error=text)
        return task

    def give_back(self, task: Task, reason: str, *, delay: timedelta = timedelta(0)) -> Task:
        """Set a running task ready again, unfinished: the attempt is not counted, and it is not
        started before ``delay`` has passed. Raises LeaseLost.

        Of several attempts returned for the same reason the history keeps the latest, so that
        a task that is returned every minute does not fill it.
        """
        rows = self.home()
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            attempt = _attempt_model().of(task, "returned", reason)
            given = rows._of_grant(task).update(attempts=F("attempts") - 1, **_waiting(delay))
            if given:
                rows._attempts_of(task).filter(outcome="returned", error=reason).delete()
                attempt.save(using=rows.db, force_insert=True)
                task.refresh_from_db(using=rows.db)
        if not given:
            raise rows._refuse(task, "give back")
        rows._tell(signals.returned, task, reason=reason)
        return task

    def release(self, row: Task) -> Task:
        """Give the task back: see ``give_back``."""
        return self.give_back(row, "released by its holder")

    # Operator verbs

    def recover(self, limit: int = SWEEP_BATCH) -> int:
        """Take stuck tasks from holders that are gone: ready again, or dead when that was their
        last attempt, with a raised token. Returns how many; call again while it is ``limit``.

        Any number of processes may do so at once: each takes rows that the others have not.
        """
        _swept_at[self.home().db] = clock()
        return self._take(self.stuck, limit, _overdue)

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take running tasks from their holders, as recovery would, without waiting for the
        deadline. What the holder does meanwhile is not undone; its late result is refused."""
        text = f"revoked by {by or 'an operator'}" + (f": {reason}" if reason else "")
        return self._take(self.running, None, lambda task: text)

    def _take(
        self, which: Callable[[], TaskQuerySet], limit: int | None, reason: Callable[[Task], str]
    ) -> int:
        rows = self.home()
        with transaction.atomic(using=rows.db):
            candidates = which().using(rows.db).order_by("pk")
            columns = candidates.only("name", "attempts", "max_attempts", "holder", *_TERM)
            before = {t.pk: t for t in lock(columns, skip_locked=limit is not None)[:limit]}
            if not before:
                return 0
            mine = Q(pk__in=before, grant_id__in=[task.grant_id for task in before.values()])
            still = which().using(rows.db).filter(mine)
            taking = {"fencing_token": next_token(), "expires_at": Least(F("expires_at"), DbNow())}
            last = Q(attempts__gte=F("max_attempts"))
            dead = still.filter(last).update(
                status=TaskStatus.FAILED, processed_at=DbNow(), unique_key=None, **taking
            )
            again = still.filter(~last).update(status=TaskStatus.READY, **taking)
            taken = rows._everything().filter(mine).exclude(status=TaskStatus.RUNNING)
            tasks = list(taken.filter(released_at=None).order_by("pk")) if dead or again else []
            rows._note_taken(tasks, before, reason)
        for task in tasks:
            rows._tell(signals.recovered, task, holder=task.holder, reason=task.last_error)
            if task.status == TaskStatus.FAILED:
                rows._tell(signals.dead, task, error=task.last_error)
        return len(tasks)

    def _note_taken(
        self, tasks: list[Task], before: dict[int, Task], reason: Callable[[Task], str]
    ) -> None:
        for task in tasks:
            task.last_error = reason(task)
            self._everything().filter(pk=task.pk).update(last_error=task.last_error)
        attempts = [_attempt_model().of(before[t.pk], "lost", t.last_error) for t in tasks]
        _attempt_model()._default_manager.using(self.db).bulk_create(attempts)

    def retry(self, by: str = "") -> int:
        """Set failed and cancelled tasks ready again, with one attempt more if they were used
        up. Returns how many."""
        rows = self.home()
        with transaction.atomic(using=rows.db):
            keys = list(lock(rows.order_by("pk")).values_list("pk", flat=True))
            over = Q(status__in=[TaskStatus.FAILED, TaskStatus.CANCELLED])
            again = [key for key in keys if rows._retry(over, key)]
            tasks = list(rows._everything().filter(pk__in=again).order_by("pk"))
        for task in tasks:
            rows._tell(signals.retried, task, by=by)
        return len(tasks)

    def _retry(self, over: Q, key: int) -> int:
        return (
            self._everything()
            .filter(over, pk=key)
            .update(
                status=TaskStatus.READY,
                scheduled_at=DbNow(),
                processed_at=None,
                max_attempts=Greatest(F("max_attempts"), F("attempts") + 1),
            )
        )

    # The pieces

    def _tell(self, signal: Signal, task: Task, **details: Any) -> None:
        after_commit(self.db, lambda: signals.send(signal, task, **details))

    def note_refused(self, row: Task, verb: str, reason: str) -> None:
        # Refused because the deadline passed: there is no record of the attempt to note it on
        # before the task is taken from it.
        late = self._everything().filter(pk=row.pk, grant_id=row.grant_id)
        late._take(late.stuck, 1, _overdue)
        self._attempts_of(row).filter(grant_id=row.grant_id, refused_at=None).update(
            refused_at=DbNow(), refused_verb=verb
        )

    def _attempts_of(self, task: Task) -> models.QuerySet[Any]:
        attempts: models.QuerySet[Any] = _attempt_model()._default_manager.using(self.db)
        return attempts.filter(task_id=task.pk)

    def why_over(
        self, row: Any, grant_id: uuid.UUID | None, fencing_token: int | None = None
    ) -> str | None:
        if row is not None and row.grant_id == grant_id:
            if row.status in TaskStatus.ended():
                return f"it was already processed: {row.status}"
            if row.status == TaskStatus.READY:
                return "it was taken back, and waits for another attempt"
        return super().why_over(row, grant_id, fencing_token)

    def _lease_columns(self, keys: Iterable[Any]) -> Self:
        return super()._lease_columns(keys).only("pk", "status", *_TERM, "holder", "released_at")


#: What identifies a term and says how long it lasts.
_TERM = ("grant_id", "fencing_token", "acquired_at", "expires_at")


def check_queue(queue: str) -> str:
    """Return ``queue`` if it is one of TASK_QUEUE["QUEUES"]. Raises UnknownQueue."""
    if queue not in task_settings.QUEUES:
        raise UnknownQueue(f"There is no queue {queue!r} in TASK_QUEUE['QUEUES'].")
    return queue


def check_between(value: int, lowest: int, highest: int, what: str) -> int:
    """Return ``value`` if it is a whole number within the bounds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"The {what} must be a whole number from {lowest} to {highest}.")
    return value


def _pause(attempts: int) -> timedelta:
    bounds = task_settings.BACKOFF
    return timedelta(seconds=backoff(attempts, base=bounds["base"], cap=bounds["cap"]))


def _overdue(task: Task) -> str:
    return f"{task.holder} did not renew its lease in time"


def _attempt_model() -> Any:
    return apps.get_model("tasks", "TaskAttempt")


def _over() -> dict[str, Any]:
    """The lease columns of a task whose holder is done with it."""
    return {"released_at": DbNow(), "expires_at": Least(F("expires_at"), DbNow())}


def _ending() -> dict[str, Any]:
    """The columns of a task that ends."""
    return {"processed_at": DbNow(), "unique_key": None, **_over()}


def _waiting(delay: timedelta) -> dict[str, Any]:
    """The columns of a task that waits ``delay`` for its next attempt."""
    moved = {"scheduled_at": after(delay)} if delay else {}
    return {"status": TaskStatus.READY, **moved, **_over()}


def _describe(error: BaseException | str) -> tuple[str, str]:
    """The error in a line, and its traceback; free of what a database cannot store."""
    if isinstance(error, str):
        return _storable(error), ""
    try:
        said = str(error)
    except Exception:  # an error of the error's own
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return _storable(text), _storable("".join(traceback.format_exception(error)))


def _storable(text: str) -> str:
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= 20_000 else clean[:10_000] + "\n...\n" + clean[-10_000:]
