"""What operators and recovery do with the tasks of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, Min, OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce, Greatest, Least
from django.dispatch import Signal

from leasing.db.dialects import lock, refuse_transaction
from leasing.db.questions import ask
from leasing.functions import DbNow, after, next_token, remaining
from leasing.runtime.clock import clock
from leasing.validation.moments import check_moment
from tasks import signals
from tasks.conf import task_settings
from tasks.notifier import ring
from tasks.querysets.base import (
    CANCEL_REQUESTED,
    TERM,
    TaskStatus,
    attempt_model,
    check_queue,
    closing,
    idle,
    overdue,
    traced,
    until_idle,
)
from tasks.querysets.cancel import Cancelling, never_cancelled
from tasks.querysets.ended import BULK_BATCH
from tasks.querysets.unique import IS_TO_HAVE_ITS_KEY, key_in_retry, key_once_retried
from tasks.runtime.tracepoints import points

if TYPE_CHECKING:
    from tasks.models import Task


#: How many rows one recovery transaction takes.
SWEEP_BATCH = 100
#: Of running tasks, the least time that recovery leaves one of them.
_LAPSE = Min(Least(remaining(), Coalesce(until_idle(), remaining())))
#: When this process last looked for stuck tasks, by database, on the holder's clock.
swept_at: dict[str, float] = {}


class Operating(Cancelling):
    """What operators and recovery do with the tasks of others."""

    def recover(self, limit: int = SWEEP_BATCH) -> int:
        """Take stuck tasks from holders that are gone: ready again, or dead when that was their
        last attempt, with a raised token. Returns how many; call again while it is ``limit``.

        Any number of processes may do so at once: each takes rows that the others have not.
        """
        swept_at[self.home().db] = clock()
        return self._take(self.stuck, limit, overdue, "expired")

    def recover_stalled(self, limit: int = SWEEP_BATCH) -> int:
        """Take stalled tasks from holders that live, but get nowhere. As ``recover`` else: what
        the holder writes afterwards is refused, and its next heartbeat tells it."""
        return self._take(self.stalled, limit, idle, "stalled")

    def _sweep_if_due(self) -> None:
        refuse_transaction(self.db)
        age = clock() - swept_at.get(self.db, 0.0)
        if age >= task_settings.SWEEP_EVERY and self.next_lapse_in() == 0:
            self._everything().recover()
            self._everything().recover_stalled()

    def next_lapse_in(self) -> float | None:
        """Seconds until recovery would take the next running task, unless it is renewed: 0, when
        there is one now; None, when none is running. The one query of a sweep in vain."""
        rows = self.home()
        swept_at[rows.db] = clock()
        said = ask(rows.model, rows.db, "lapse", lambda: {"left": rows._lapse()})
        return _seconds(said["left"])

    def look_ahead(self, seconds: float) -> tuple[float | None, bool]:
        """``next_lapse_in`` and ``are_due_within``, in one query."""
        rows = self.home()
        swept_at[rows.db] = clock()
        about = ("ahead", seconds, rows.query.where)

        def questions() -> dict[str, Any]:
            return {"left": rows._lapse(), "due": Exists(rows._due_within(seconds))}

        said = ask(rows.model, rows.db, about, questions)
        return _seconds(said["left"]), bool(said["due"])

    def _lapse(self) -> Subquery:
        running = self._everything().running().order_by()
        return Subquery(running.values(all=Value(1)).annotate(left=_LAPSE).values("left"))

    def are_due_within(self, seconds: float) -> bool:
        """Whether any of these tasks is ready now, or will be within ``seconds``."""
        return self._due_within(seconds).exists()

    def _due_within(self, seconds: float) -> Self:
        soon = after(timedelta(seconds=seconds))
        return self.filter(status=TaskStatus.READY, scheduled_at__lte=soon)

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take running tasks from their holders, as recovery would, without waiting for the
        deadline. What the holder does meanwhile is not undone; its late result is refused."""
        text = f"revoked by {by or 'an operator'}" + (f": {reason}" if reason else "")
        return self._take(self.running, None, lambda task: text, "revoked")

    def grantable(self) -> Self:
        return self.filter(status=TaskStatus.READY, grants__gt=0)

    def _take(
        self,
        which: Callable[[], Operating],
        limit: int | None,
        reason: Callable[[Task], str],
        kind: str,
    ) -> int:
        rows = self.home()
        with transaction.atomic(using=rows.db):
            candidates = which().using(rows.db)._of_one_table().order_by("pk")
            columns = candidates.only(
                "name", "attempts", "max_attempts", "holder", "renewed_at", *TERM
            ).annotate(now=DbNow())
            before = {t.pk: t for t in lock(columns, skip_locked=limit is not None)[:limit]}
            if not before:
                return 0
            mine = Q(pk__in=before, grant_id__in=[task.grant_id for task in before.values()])
            still = which().using(rows.db).filter(mine)
            taking = {
                "fencing_token": next_token(),
                "expires_at": Least(F("expires_at"), DbNow()),
                "slot": None,
            }
            asked = still.filter(CANCEL_REQUESTED).update(
                status=TaskStatus.CANCELLED, **closing(), **taking
            )
            last = Q(attempts__gte=F("max_attempts"))
            dead = still.filter(last).update(status=TaskStatus.FAILED, **closing(), **taking)
            again = still.filter(~last).update(
                status=TaskStatus.READY, unique_key=key_in_retry(), **taking
            )
            taken = rows._everything().filter(mine).exclude(status=TaskStatus.RUNNING)
            tasks = (
                list(taken.filter(released_at=None).order_by("pk"))
                if asked or dead or again
                else []
            )
            rows._note_taken(tasks, before, reason)
        for task in tasks:
            old = before[task.pk]
            rows._tell(
                signals.recovered,
                task,
                holder=task.holder,
                reason=reason(task),
                kind=kind,
                silent_for=old.now - (old.renewed_at or old.acquired_at),
                overdue_for=old.now - old.expires_at,
            )
            if task.status == TaskStatus.FAILED:
                rows._tell(signals.dead, task, error=task.last_error)
            elif task.status == TaskStatus.CANCELLED:
                rows._tell_cancelled(task)
        ring(rows.db, [task for task in tasks if task.status == TaskStatus.READY])
        return len(tasks)

    def _note_taken(
        self, tasks: list[Task], before: dict[int, Task], reason: Callable[[Task], str]
    ) -> None:
        attempts = []
        # Of a holder that is gone all is left with the same words, unless it is traced.
        left: defaultdict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
        for task in tasks:
            text = reason(task)
            attempts.append(attempt_model().of(before[task.pk], "lost", text))
            if points.tracer is not None:
                points.tracer.lost(task, text)
            if task.status != TaskStatus.CANCELLED:  # which says who cancelled it, and why
                task.last_error = text
                left[(("last_error", text), *traced(task).items())].append(task.pk)
        for columns, keys in left.items():
            self._everything().filter(pk__in=keys).update(**dict(columns))
        attempt_model()._default_manager.using(self.db).bulk_create(attempts)

    def retry(self, by: str = "") -> int:
        """Set failed and cancelled tasks ready again, with one attempt more if they were used
        up, some hundred in a transaction: those of an earlier one stay ready when a later one
        fails. Returns how many. A task whose unique key another has by now stays as it is."""
        over = Q(status__in=[TaskStatus.FAILED, TaskStatus.CANCELLED]) & ~self.is_without_its_key()
        columns = {
            "status": TaskStatus.READY,
            "scheduled_at": DbNow(),
            "processed_at": None,
            "unique_key": key_once_retried(),
            "max_attempts": Greatest(F("max_attempts"), F("attempts") + 1),
            # It was asked to stop in a life that is over.
            **never_cancelled(),
        }
        return self._make_ready(over, columns, signals.retried, by)

    def is_without_its_key(self) -> Q:
        """The condition of a task that cannot be retried now: another has its unique key."""
        others = self.home()._everything().filter(unique_key=OuterRef("enqueued_key"))
        return IS_TO_HAVE_ITS_KEY & Q(Exists(others))

    def reschedule(
        self, *, queue: str | None = None, scheduled_at: datetime | None = None, by: str = ""
    ) -> int:
        """Move waiting tasks to another ``queue``, another time, or both, some hundred in a
        transaction. Returns how many.

        Raises UnknownQueue; ValueError when neither is given, or the time has no zone.
        """
        columns: dict[str, Any] = {}
        if queue is not None:
            # A message that is under way is for workers of the old one.
            columns |= {"queue": check_queue(queue), "published_at": None}
        if scheduled_at is not None:
            columns["scheduled_at"] = check_moment(scheduled_at, "scheduled_at")
        if not columns:
            raise ValueError("Where to? Give a queue, a time, or both.")
        return self._make_ready(Q(status=TaskStatus.READY), columns, signals.rescheduled, by)

    def _make_ready(self, demand: Q, columns: dict[str, Any], signal: Signal, by: str) -> int:
        """Update those among these rows that meet ``demand``, which are ready then, batch by
        batch: a hundred thousand dead letters must not keep everybody else from their rows for
        as long as they take."""
        rows, last, changed = self.home()._of_one_table(), 0, 0
        while True:
            with transaction.atomic(using=rows.db):
                found = lock(rows.filter(demand, pk__gt=last).order_by("pk"))
                keys = list(found.values_list("pk", flat=True)[:BULK_BATCH])
                done = rows._write_ready(keys, demand, columns)
                ready = rows._everything().filter(pk__in=keys, status=TaskStatus.READY)
                tasks = list(ready.order_by("pk")) if done else []
            for task in tasks:
                rows._tell(signal, task, by=by)
            ring(rows.db, tasks)
            changed += done
            if len(keys) < BULK_BATCH:
                return changed
            last = keys[-1]

    def _write_ready(self, keys: list[int], demand: Q, columns: dict[str, Any]) -> int:
        # With the condition again: not every database has row locks.
        chosen = self._everything().filter(demand, pk__in=keys)
        try:
            with transaction.atomic(using=self.db):
                return chosen.update(**columns)
        except IntegrityError:
            if len(keys) <= 1:
                return 0  # its key was taken just before
        # Two of them have one key: each on its own, and the second not.
        return sum(self._write_ready([key], demand, columns) for key in keys)

    def note_refused(self, row: Task, verb: str, reason: str) -> None:
        # Refused because the deadline passed: there is no record of the attempt to note it on
        # before the task is taken from it.
        late = self._everything().filter(pk=row.pk, grant_id=row.grant_id)
        late._take(late.stuck, 1, overdue, "expired")
        self._attempts_of(row).filter(grant_id=row.grant_id, refused_at=None)._note(
            refused_at=DbNow(), refused_verb=verb
        )


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else max(0.0, span.total_seconds())
