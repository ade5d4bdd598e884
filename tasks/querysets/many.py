"""Ending many tasks in one short transaction, for workers that have several ready at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DataError, IntegrityError, connections, models, transaction
from django.db.models import Case, F, Q, Value, When
from django.dispatch import Signal

from leasing.db.dialects import after_commit, lock
from leasing.exceptions import LeaseLost
from leasing.functions import after
from leasing.querysets.claim import ending as leaving_blocks
from tasks import registry, signals
from tasks.exceptions import NotSerializable
from tasks.payload import dumped_json
from tasks.querysets.base import CANCEL_REQUESTED, TaskStatus, attempt_model, ending, waiting
from tasks.querysets.claimed import Completed, Taken
from tasks.querysets.holder import Failure, Holding
from tasks.querysets.sql import claim

if TYPE_CHECKING:
    from tasks.models import Task

#: Outputs of more characters than this go to the database one by one.
LARGEST = 16_000_000

Result = TypeVar("Result")
#: A signal to send, and what it says.
Tellings = list[tuple["Task", Signal, dict[str, Any]]]
Refused = list[tuple["Task", Exception]]


#: What tells of an attempt that ended badly, by the state of its task afterwards.
FAILURES = {
    TaskStatus.READY: signals.failed,
    TaskStatus.FAILED: signals.dead,
    TaskStatus.CANCELLED: signals.cancelled,
}


class Batching(Holding):
    """The verbs that end a task, for many at once.

    What the one transaction does not take is tried again one by one: each is then refused, and
    the refusal noted, for its own reason, and none sinks its neighbours.
    """

    def complete_many(self, results: Iterable[tuple[Task, Any]]) -> tuple[list[Task], Refused]:
        """``complete`` each task with the output beside it. Returns those that are completed,
        and the others, each with its error (LeaseLost, NotSerializable, DataError)."""
        rows = self.home()
        return rows._end_many(list(results), rows._complete_all, rows.complete)

    def complete_taken(self, results: Iterable[tuple[Taken, Any]]) -> list[tuple[Taken, Exception]]:
        """``complete`` each with the output beside it, for workers: nothing is read back where
        nobody looks. Returns those that are not completed, each with its error."""
        results = list(results)
        rows = self.home()
        if signals.completed.has_receivers(rows.model) or not claim.serves(rows.db):
            taken = {id(each.task): each for each, _ in results}
            _, refused = rows.complete_many([(each.task, output) for each, output in results])
            return [(taken[id(task)], error) for task, error in refused]
        done, told = rows._complete_in_one_statement(results)
        rows._tell_completed([each for each, _ in results if id(each) in done], told)
        left = [(each, output) for each, output in results if id(each) not in done]
        return [
            (each, error)
            for each, output in left
            if (error := rows._refusal(rows.complete, each.task, output))
        ]

    def _complete_in_one_statement(
        self, results: list[tuple[Taken, Any]]
    ) -> tuple[set[int], list[Completed]]:
        """Complete what can be completed so. Returns the ``id()`` of each that is, and those of
        them whose end is to be told."""
        asked, outputs, told = _asked_together(results)
        if not asked:
            return set(), []
        try:
            with _statement(self.db):
                done = claim.complete(
                    self, [each for each, _ in asked.values()], outputs, timed=bool(told)
                )
        except (DataError, IntegrityError):
            return set(), []
        ends = [
            Completed(asked[key][0], _as_json(asked[key][1]) or "null", at)
            for key in told
            if (at := done.get(key))
        ]
        return {id(asked[key][0]) for key in done}, ends

    def _tell_completed(self, done: list[Taken], ends: list[Completed]) -> None:
        """Log and count what is ``done``, and tell of those ``ends`` that somebody waits for."""

        def tell() -> None:
            if done and signals.completed.is_noted:
                signals.completed.note(done)
            for end in ends:
                registry.tell_end(end)

        if ends or signals.completed.is_noted:
            after_commit(self.db, tell)

    def _refusal(
        self, alone: Callable[[Task, Any], object], task: Task, result: Any
    ) -> Exception | None:
        """What ``alone`` has against ``result``; None: it is stored."""
        try:
            alone(task, result)
        except (LeaseLost, NotSerializable, DataError, IntegrityError) as error:
            return error
        return None

    def fail_many(
        self, failures: Iterable[tuple[Task, BaseException | str]]
    ) -> tuple[list[Task], Refused]:
        """``fail`` each task with the error beside it. Returns those that are failed, and the
        others, each with its error (LeaseLost)."""
        rows = self.home()
        # Policies are asked before the transaction begins, which on SQLite is a lock already.
        judged = [(task, Failure.of(task, error)) for task, error in failures]
        return rows._end_many(judged, rows._fail_all, rows._fail_alone)

    def _end_many(
        self,
        items: list[tuple[Task, Result]],
        together: Callable[[list[tuple[Task, Result]]], Tellings],
        alone: Callable[[Task, Result], object],
    ) -> tuple[list[Task], Refused]:
        for task, _ in items:
            self.refuse_elsewhere(task, self.db)
        with leaving_blocks(self.db, [task for task, _ in items]) as standing:
            try:
                with transaction.atomic(using=self.db):
                    tellings = together(items)
            except (DataError, IntegrityError):
                tellings = []
            done = {id(task) for task, _, _ in tellings}
            standing += [task for task, _ in items if id(task) not in done]
        for task, signal, details in tellings:
            if task.status == TaskStatus.CANCELLED:
                self._tell_cancelled(task)
            else:
                self._tell(signal, task, **details)
        refused: Refused = []
        for task, result in items:
            if id(task) not in done and (error := self._refusal(alone, task, result)):
                refused.append((task, error))
        turned_away = {id(task) for task, _ in refused}
        return [task for task, _ in items if id(task) not in turned_away], refused

    def _complete_all(self, items: list[tuple[Task, Any]]) -> Tellings:
        mine = self._lock_all([(task, output) for task, output in items if _is_json(output)])
        outputs = [
            When(pk=key, then=Value(output, models.JSONField()))
            for key, (_, output) in mine.items()
            if output is not None
        ]
        tasks = [task for task, _ in mine.values()]
        done = self._of_grants(tasks).update(
            task_output=Case(*outputs, default=Value(None), output_field=models.JSONField()),
            **self.completing(),
        )
        # Fewer only where there are no row locks, and somebody came between.
        ours = tasks if done == len(tasks) else self._ended_so(list(mine.values()))
        self._read_back(ours)
        return [(task, signals.completed, {}) for task in ours]

    def _ended_so(self, items: list[tuple[Task, Any]]) -> list[Task]:
        """The tasks that have succeeded under their grant, and with the output beside them."""
        keys = [task.pk for task, _ in items]
        rows = {row.pk: row for row in self._everything().filter(pk__in=keys).succeeded()}
        return [
            task
            for task, output in items
            if task.pk in rows
            and rows[task.pk].grant_id == task.grant_id
            and rows[task.pk].task_output == json.loads(json.dumps(output))
        ]

    def _fail_all(self, items: list[tuple[Task, Failure]]) -> Tellings:
        failures = {key: failure for key, (_, failure) in self._lock_all(items).items()}
        updated = self._write_failures(failures)
        ours = self._failed_so(failures, everyone=updated == len(failures))
        attempts = [failure.attempt for failure in ours]
        attempt_model()._default_manager.using(self.db).bulk_create(attempts)
        tellings: Tellings = []
        for failure in ours:
            failure.task.raised = failure.raised
            tellings.append(
                (failure.task, FAILURES[TaskStatus(failure.task.status)], {"error": failure.text})
            )
        return tellings

    def _write_failures(self, failures: dict[Any, Failure]) -> int:
        """End the attempts of these locked rows, those that end alike by one statement. Returns
        how many it were."""
        mine = self._of_grants([failure.task for failure in failures.values()])
        texts = [When(pk=key, then=Value(each.text)) for key, each in failures.items()]
        if not texts:
            return 0
        said: dict[str, Any] = {"last_error": Case(*texts, output_field=models.TextField())}
        tasks = {key: each.task for key, each in failures.items()}
        traces = [
            When(pk=key, then=Value(task.traced)) for key, task in tasks.items() if task.traced
        ]
        if traces:
            said["trace_context"] = Case(
                *traces, default=F("trace_context"), output_field=models.TextField()
            )
        cancelled = mine.filter(CANCEL_REQUESTED).update(
            status=TaskStatus.CANCELLED, **said, **ending()
        )
        delays = {key: each.delay for key, each in failures.items() if each.delay is not None}
        again = 0
        if delays:
            waits = [When(pk=key, then=after(delay)) for key, delay in delays.items() if delay]
            due = {"scheduled_at": Case(*waits, default=F("scheduled_at"))} if waits else {}
            left = mine.filter(pk__in=list(delays), attempts__lt=F("max_attempts"))
            again = left.update(**said, **waiting(timedelta(0)), **due)
        dead = 0
        if cancelled + again < len(failures):
            dead = mine.update(status=TaskStatus.FAILED, **said, **ending())
        return cancelled + again + dead

    def _failed_so(self, failures: dict[Any, Failure], *, everyone: bool) -> list[Failure]:
        """Read the tasks back; those that have failed under their grant, and with their error."""
        rows = {row.pk: row for row in self._everything().filter(pk__in=list(failures))}
        ours = [
            failure
            for key, failure in failures.items()
            if everyone
            or key in rows
            and rows[key].grant_id == failure.task.grant_id
            and rows[key].last_error == failure.text
            and rows[key].released_at is not None
            and rows[key].status in FAILURES
        ]
        self._show([failure.task for failure in ours], rows)
        return ours

    def _lock_all(self, items: list[tuple[Task, Result]]) -> dict[Any, tuple[Task, Result]]:
        """Lock the rows, in the order of their keys, and return the items whose grant stands."""
        # Of one task named twice the first counts; the other is refused alone.
        first = {task.pk: (task, result) for task, result in reversed(items)}
        rows = lock(self._of_grants([task for task, _ in first.values()]).order_by("pk"))
        stand = dict(rows.values_list("pk", "grant_id"))
        return {key: first[key] for key, grant in stand.items() if first[key][0].grant_id == grant}

    def _of_grants(self, tasks: list[Task]) -> Batching:
        mine = Q(pk__in=[t.pk for t in tasks], grant_id__in=[t.grant_id for t in tasks])
        return self._everything().filter(mine).holding()

    def _read_back(self, tasks: list[Task]) -> None:
        """Read ``tasks`` again, by one query."""
        keys = [task.pk for task in tasks]
        self._show(tasks, {row.pk: row for row in self._everything().filter(pk__in=keys)})

    def _show(self, tasks: list[Task], rows: Mapping[Any, Task]) -> None:
        """Make each of ``tasks`` what its row is."""
        for task in tasks:
            for field in self.model._meta.concrete_fields:
                setattr(task, field.attname, getattr(rows[task.pk], field.attname))


def _asked_together(
    results: list[tuple[Taken, Any]],
) -> tuple[dict[int, tuple[Taken, Any]], str, list[int]]:
    """Those of ``results`` that one statement may store, by their keys and in their order; all
    their outputs as one text of JSON; and the keys of those whose end is to be told."""
    asked: dict[int, tuple[Taken, Any]] = {}
    told: list[int] = []
    for result in sorted(results, key=_key):
        each = result[0]
        if each.id in asked:
            continue
        handler = registry.get(each.name)
        if handler is not None and handler.on_end is not None:
            if not each.can_be_told:
                continue
            told.append(each.id)
        asked[each.id] = result
    # Together they take half as long as one by one, and are seldom refused.
    text = _as_json([output for _, output in asked.values()])
    if text is None or len(text) > LARGEST:
        asked, text = _small_enough(asked)
    return asked, text, [key for key in told if key in asked]


def _small_enough(asked: dict[int, tuple[Taken, Any]]) -> tuple[dict[int, tuple[Taken, Any]], str]:
    """Those of ``asked`` whose output may be stored, as far as they fit into one statement, and
    their outputs as JSON."""
    texts: dict[int, str] = {}
    room = LARGEST
    for key, (_, output) in asked.items():
        text = _as_json(output)
        if text is not None and len(text) <= room:
            texts[key] = text
            room -= len(text)
    return {key: asked[key] for key in texts}, f"[{','.join(texts.values())}]"


def _key(result: tuple[Taken, Any]) -> int:
    return result[0].id


def _is_json(output: Any) -> bool:
    return _as_json(output) is not None


def _as_json(output: Any) -> str | None:
    """``output`` as text, if it may be stored."""
    try:
        return dumped_json(output, "output")
    except NotSerializable:
        return None


def _statement(using: str) -> AbstractContextManager[object]:
    """Around one statement: within a transaction an error of it is to harm nothing else."""
    inside = connections[using].in_atomic_block
    return transaction.atomic(using=using) if inside else nullcontext()
