"""Recovery: take tasks from holders that are gone, make no progress, or are revoked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models
from django.db.models import F, Min, Q, Subquery, Value
from django.db.models.functions import Coalesce, Least

from leasing.db.compiled_queries import query_scalars
from leasing.db.dialects import atomic, lock, refuse_transaction
from leasing.functions import DbNow, after, next_token, remaining
from leasing.humanize import plural, span
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.conf import task_settings
from tasks.notifier import notify
from tasks.querysets import compensation
from tasks.querysets.base import (
    CANCEL_REQUESTED,
    TERM,
    TaskRows,
    TaskStatus,
    attempt_model,
    until_idle,
)
from tasks.querysets.transitions import ByKey, closing, traced
from tasks.querysets.unique import key_in_retry
from tasks.retry import usual_pause

if TYPE_CHECKING:
    from tasks.models import Task

#: Texts of attempts that were lost with their worker: its parent saw it die, or it was silent.
DIED, SILENT = "its worker ", "did not renew its lease in time"
#: The begin of the text of a revocation, which goes on with words of an operator.
REVOKED = "revoked by "
LOST_WITH_WORKER = Q(outcome="lost") & (
    Q(error__startswith=DIED) | Q(error__contains=SILENT) & ~Q(error__startswith=REVOKED)
)
#: The number of workers that a task is lost with until it is suspected of their deaths.
SUSPECTED_FROM = 3
#: The newest lost attempts that are searched for what was lost with a worker.
SUSPECTS_READ = 500
#: Rows that one recovery transaction takes.
SWEEP_BATCH = 100
#: Of running tasks, the least time that recovery leaves one of them.
_LAPSE = Min(Least(remaining(), Coalesce(until_idle(), remaining())))
#: The moment at which this process last looked for stuck tasks, by database, on the holder's clock.
swept_at: dict[str, float] = {}
#: The number of times that this process has tried to take an expired task, and its row was locked:
#: by database and grant.
_tries: dict[str, dict[UUID | None, int]] = {}


class RecoveryVerbs(TaskRows):
    """Recovery of tasks, and of refused reports of their holders."""

    def recover(self, limit: int = SWEEP_BATCH) -> int:
        """Take stuck tasks from holders that are gone. They become ready, each after the pause
        of TASK_QUEUE["BACKOFF"], or failed after their last attempt, with a higher token. Returns
        how many; call again while it is ``limit``.

        Any number of processes may recover at a time: each takes rows that the others have not.
        """
        rows = self.home()
        swept_at[rows.db] = clock()
        taken = take_from_holders(rows, TaskRows.stuck, limit, _overdue, "expired")
        tries = _tries.get(rows.db, {})
        if not taken:
            locked = rows.stuck().values_list("grant_id", flat=True)[:SWEEP_BATCH]
            _tries[rows.db] = {grant_id: tries.get(grant_id, 0) + 1 for grant_id in locked}
        return taken

    def recover_stalled(self, limit: int = SWEEP_BATCH) -> int:
        """Take stalled tasks from holders that are alive but report no progress, as ``recover``
        does. The holder's later writes are refused; it learns of the loss at its next heartbeat."""
        return take_from_holders(self.home(), TaskRows.stalled, limit, _idle, "stalled")

    def take_from_dead(self, reason: str, at_least: timedelta) -> int:
        """Take running tasks from a holder that was seen to die, as ``recover`` does, without
        waiting for the deadline. None starts again before ``at_least``. Returns how many."""
        return take_from_holders(
            self.home(), TaskRows.running, None, lambda task: reason, "died", at_least=at_least
        )

    def next_lapse_in(self) -> float | None:
        """Return the seconds until recovery would take the next running task, unless it is renewed:
        0 if there is one now; None if none is running. A sweep that finds nothing makes only this
        query."""
        rows = self.home()
        swept_at[rows.db] = clock()

        def lapse() -> Subquery:
            running = rows._everything().running().order_by()
            return Subquery(running.values(all=Value(1)).annotate(left=_LAPSE).values("left"))

        left = query_scalars(rows.model, rows.db, "lapse", lambda: {"left": lapse()})["left"]
        return None if left is None else max(0.0, left.total_seconds())

    def note_refused(self, row: Task, verb: str, reason: str) -> None:
        """Record on its attempt that a late ``verb`` of the holder of ``row`` was refused."""
        # Refused because the deadline passed: there is no record of the attempt to note it on
        # before the task is taken from it.
        late = self._everything().filter(pk=row.pk, grant_id=row.grant_id)
        take_from_holders(late, TaskRows.stuck, 1, _overdue, "expired")
        attempts = attempt_model()._default_manager.using(self.db).filter(task_id=row.pk)
        attempts.filter(grant_id=row.grant_id, refused_at=None)._note(
            refused_at=DbNow(), refused_verb=verb
        )

    def _sweep_if_due(self) -> None:
        """Recover what this process has not looked for lately."""
        refuse_transaction(self.db)
        age = clock() - swept_at.get(self.db, 0.0)
        if age >= task_settings.SWEEP_EVERY and self.next_lapse_in() == 0:
            self._everything().recover()
            self._everything().recover_stalled()


def take_from_holders(
    rows: TaskRows,
    which: Callable[[TaskRows], TaskRows],
    limit: int | None,
    reason: Callable[[Task], str],
    kind: str,
    *,
    backs_off: bool = True,
    at_least: timedelta = timedelta(0),
) -> int:
    """Take tasks from their holders. Returns how many.

    Args:
        rows: The tasks to take from.
        which: Those of them that the clock or an operator says.
        limit: The greatest number to take; None: all.
        reason: The reason, for the history.
        kind: The kind of reason, for receivers of the signal.
        backs_off: True to have each wait for the usual pause before its next attempt.
        at_least: The shortest pause.
    """
    with atomic(rows.db):
        candidates: Any = which(rows)._of_one_table().order_by("pk")
        columns = candidates.only(
            "name", "attempts", "max_attempts", "holder", "renewed_at", *TERM
        ).annotate(now=DbNow())
        before = {t.pk: t for t in lock(columns, skip_locked=limit is not None)[:limit]}
        if not before:
            return 0
        mine = Q(pk__in=before, grant_id__in=[task.grant_id for task in before.values()])
        still = which(rows).filter(mine)
        taking = {
            "fencing_token": next_token(),
            "expires_at": Least(F("expires_at"), DbNow()),
            "slot": None,
        }
        last = Q(attempts__gte=F("max_attempts"))
        spared = _spared(rows, before, reason) if kind in ("expired", "died") else {}
        # These do not fail below.
        still.filter(pk__in=spared).update(attempts=F("attempts") - 1)
        asked = still.filter(CANCEL_REQUESTED).update(
            status=TaskStatus.CANCELLED, **closing(), **taking
        )
        failed = still.filter(last).update(status=TaskStatus.FAILED, **closing(), **taking)
        again = still.update(
            status=TaskStatus.READY,
            unique_key=key_in_retry(),
            **taking,
            **(_starts(before, at_least) if backs_off else {}),
        )
        taken = rows._everything().filter(mine).exclude(status=TaskStatus.RUNNING)
        tasks = (
            list(taken.filter(released_at=None).order_by("pk")) if asked or failed or again else []
        )
        texts = {task.pk: reason(task) + spared.get(task.pk, "") for task in tasks}
        _note_taken(rows, tasks, before, texts)
        compensation.store(rows, tasks)
    for task in tasks:
        old = before[task.pk]
        rows._tell(
            "task.recovered",
            [task],
            holder=task.holder,
            reason=texts[task.pk],
            kind=kind,
            silent_for=old.now - (old.renewed_at or old.acquired_at),
            overdue_for=old.now - old.expires_at,
        )
        if task.status == TaskStatus.FAILED:
            rows._tell("task.failed", [task], error=task.last_error)
        elif task.status == TaskStatus.CANCELLED:
            rows._tell_cancelled(task)
    # Of those that wait, too: a worker that looks in vain sees when the next of them is due.
    notify(rows.db, [task for task in tasks if task.status == TaskStatus.READY])
    return len(tasks)


def is_lost_with_worker(error: str) -> bool:
    """Return True if ``error`` is that of an attempt, or a task, that was lost with its worker."""
    return error.startswith(DIED) or (SILENT in error and not error.startswith(REVOKED))


def _spared(rows: TaskRows, taking: dict[int, Task], why: Callable[[Task], str]) -> dict[int, str]:
    """Return those of the tasks ``taking`` whose last attempt is not counted, with the end of the
    text that says so: they were lost with their worker, as was a task that is suspected of its
    death (decision 30).

    A suspect was lost with SUSPECTED_FROM workers, and with as many as the task that it spares. One
    that was itself lost with twice as many as it has attempts is spared no more, so that two that
    spare each other come to an end; nor is one that has a single attempt: it must not run twice.
    """
    doomed = [task for task in taking.values() if task.attempts >= task.max_attempts > 1]
    doomed = [task for task in doomed if is_lost_with_worker(why(task))]
    if not doomed:
        return {}
    attempts = attempt_model()._default_manager.using(rows.db)
    # The newest of every loss, by their index: rarer ones might be searched for in all of them.
    newest = attempts.filter(outcome="lost").order_by("-pk")
    before = newest.values_list("task", "holder", "ended_at", "error")[:SUSPECTS_READ]
    held = rows._everything().running().filter(holder__in={task.holder for task in doomed})
    # What is held is being lost now, and has no record of that.
    lost = [each for *each, error in before if is_lost_with_worker(error)]
    lost += held.values_list("pk", "holder", DbNow())
    lost_with = {
        task.pk: {
            key for key, holder, at in lost if holder == task.holder and at >= task.acquired_at
        }
        for task in doomed
    }
    times = Counter(held.values_list("pk", flat=True))
    earlier = attempts.filter(LOST_WITH_WORKER, task__in=set().union(*lost_with.values()))
    times.update(earlier.values_list("task", flat=True))
    found: dict[int, str] = {}
    for task in doomed:
        suspect = max(lost_with[task.pk] - {task.pk}, key=lambda key: times[key], default=task.pk)
        mine, most = times[task.pk], times[suspect]
        if suspect != task.pk and SUSPECTED_FROM <= most >= mine < 2 * task.max_attempts:
            found[task.pk] = f", with task:{suspect}, which may be the cause: not counted"
    return found


def _starts(tasks: dict[int, Any], at_least: timedelta) -> dict[str, Any]:
    """The columns with the next start of each task. No policy of a handler decides about it: it
    judges an error, and there is none."""
    pauses = {
        key: max(at_least, timedelta(seconds=usual_pause(task.attempts)))
        for key, task in tasks.items()
    }
    return {"scheduled_at": after(ByKey(pauses, models.DurationField()))}


def _note_taken(
    rows: TaskRows, tasks: list[Task], before: dict[int, Any], texts: dict[int, str]
) -> None:
    attempts = []
    # Of a holder that is gone all is left with the same words, unless it is traced.
    left: defaultdict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
    for task in tasks:
        text = texts[task.pk]
        attempts.append(attempt_model().of(before[task.pk], "lost", text))
        happened("attempt.lost", [task], reason=text)
        if task.status != TaskStatus.CANCELLED:  # which says who cancelled it, and why
            task.last_error = text
            left[(("last_error", text), *traced(task).items())].append(task.pk)
    for columns, keys in left.items():
        rows._everything().filter(pk__in=keys).update(**dict(columns))
    attempt_model()._default_manager.using(rows.db).bulk_create(attempts)


def _overdue(task: Task) -> str:
    tries = _tries.get(str(task._state.db), {}).get(task.grant_id, 0)
    if tries:
        return f"could not be renewed: the row was locked ({plural(tries, 'try', 'tries')})"
    return f"{task.holder} {SILENT}"


def _idle(task: Task) -> str:
    assert task.progress_timeout is not None
    return f"no progress for {span(task.progress_timeout)}"
