"""Verbs of workers on what they hold: claim it, and say how far it is. Its end: see ``ends``.

Nothing that is said on the way looks at the clock: while the grant is the row's and the row is
running, nobody else has had the task, so what a late holder says then is still the latest there is.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db.models import F, Value
from django.db.models.expressions import Combinable

from leasing.db.dialects import atomic, durable, lock_names, take_write_lock
from leasing.functions import DbNow
from leasing.holding.claim import Claim
from leasing.runtime.events import happened
from leasing.stores import portable
from leasing.validation.names import check_name
from leasing.validation.terms import Terms
from tasks.conf import task_settings
from tasks.exceptions import ClaimAnswered, ClaimUnderWay
from tasks.payload import check_json
from tasks.querysets import slots
from tasks.querysets.base import TaskRows, step_model
from tasks.querysets.claim_key import ClaimKeyQuerySet
from tasks.querysets.claimed import ClaimedTask, Taken, keeping
from tasks.querysets.recovery import RecoveryVerbs
from tasks.querysets.slots import Seats
from tasks.querysets.sql import claim as one_statement
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.registry import KINDS, check_queue

if TYPE_CHECKING:
    from tasks.models import Task, TaskStep

#: The queues to claim from, and a ttl, as callers give them.
Queues = Sequence[str] | None
Ttl = float | timedelta | None


class WorkerVerbs(RecoveryVerbs):
    """Claims, and reports while a task runs."""

    def claim(  # type: ignore[override]
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
        free: int | None = None,
        request_id: uuid.UUID | None = None,
    ) -> Claim[Task]:
        """Claim ready tasks for ``holder``.

        Higher priority goes first, then the longest due. Paused queues are skipped, and tasks whose
        concurrency key is at its limit. The queue to begin with is drawn at random, so that a full
        one does not starve the others. If this process has not looked for stuck tasks for
        SWEEP_EVERY, it does so first, so that tasks are recovered even where all workers are
        remote.

        Args:
            holder: The name of the worker.
            queues: The queues to claim from; None: all.
            limit: The number of tasks, at most.
            ttl: Seconds of the lease, from now and from each heartbeat.
            free: The number of tasks that begin at once; the others wait for a slot of the worker.
                A task with one attempt, or that has run before, is claimed only if it is among the
                first so many: if the worker dies, it has not failed before it began. None: all
                begin at once.
            request_id: The caller's name of this call, a digest or a random UUID, if it may be
                repeated because its answer was lost. Within ten minutes a repetition returns those
                of its tasks whose grants still hold, and claims nothing more. One that claimed
                nothing may claim later, until ``note_empty_claim``.

        Raises UnknownQueue, InvalidResource (the holder), InvalidTTL, LeaseInTransaction;
        ClaimUnderWay while the call that it repeats has not ended, ClaimAnswered once that holds
        nothing any more.
        """
        rows = self.home()
        terms, names = _asked(rows, holder, queues, ttl)
        seats = Seats(rows, limit, free)
        if request_id is None:
            tasks = _claim(rows, terms, names, seats)
        else:
            terms = replace(terms, request_id=request_id)
            with durable(rows.db):
                if again := _claimed_before(rows, terms):
                    return Claim(again, rows.store())
                tasks = _claim(rows, terms, names, seats)
                if tasks:
                    _keys(rows).remember(request_id)
        if tasks:
            happened("task.claimed", tasks)
        return Claim(tasks, rows.store())

    def note_empty_claim(self, holder: str, request_id: uuid.UUID) -> Claim[Task]:
        """Remember that the call of ``claim`` with this ``request_id`` is answered with no task, so
        that a repetition which comes late claims nothing. Returns what one that came first has
        claimed. Arguments and errors are those of ``claim``."""
        rows = self.home()
        terms = replace(Terms.check(holder=holder), request_id=request_id)
        with durable(rows.db):
            again = _claimed_before(rows, terms)
            if not again:
                _keys(rows).remember(request_id)
        return Claim(again, rows.store())

    def take(
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
        kinds: Sequence[int] = KINDS,
        free: int | None = None,
        cursor: ClaimCursor | None = None,
    ) -> Taken:
        """``claim`` for workers, without model instances: queue by queue, and of each the ``kinds``
        one after the other. Raises as ``claim`` does.

        Args:
            holder: The name of the worker.
            queues: The queues to claim from; None: all.
            limit: The number of tasks, at most.
            ttl: Seconds of the lease, from now and from each heartbeat.
            kinds: Numbers of ``tasks.registry.Kind``.
            free: As of ``claim``.
            cursor: It goes on where the claim before with this cursor has ended.
        """
        rows, taken = self.home(), Taken()
        terms, names = _asked(rows, holder, queues, ttl)
        seats, are_keyed = Seats(rows, limit, free), True
        if one_statement.serves(rows):
            claimed, are_keyed = one_statement.take(
                rows, terms, names, kinds, seats, cursor or ClaimCursor()
            )
            taken += claimed
        if are_keyed and seats.room:
            with keeping(taken):
                with durable(rows.db):
                    more = [
                        task
                        for queue, kind in product(names, kinds)
                        for task in _grant(rows.to_claim(queue, kind), terms, seats, seats.room)
                    ]
                taken += map(ClaimedTask.taken, more)
        taken.has_more = seats.passed_over or seats.room <= 0 < limit
        if taken:
            happened("task.claimed", taken)
        return taken

    def take_one(
        self, key: int, holder: str, *, queue: str, ttl: float | timedelta | None = None
    ) -> ClaimedTask | None:
        """``take`` one task, if it can be claimed now. Raises as ``claim`` does.

        Args:
            key: The key of the task.
            holder: The name of the worker.
            queue: The queue that it must be in.
            ttl: Seconds of the lease, from now and from each heartbeat.
        """
        rows = self.home()
        terms, _ = _asked(rows, holder, [queue], ttl)
        seats, claimed, is_keyed = Seats(rows, 1), list[ClaimedTask](), True
        if one_statement.serves(rows):
            claimed, is_keyed = one_statement.take_one(rows, terms, queue, key, seats)
        if is_keyed:
            one = rows.filter(pk=key).to_claim_of(queue)
            with durable(rows.db):
                seated = _grant(one, terms, seats, 1)
            claimed = [ClaimedTask.taken(task) for task in seated]
        if not claimed:
            return None
        happened("task.claimed", claimed)
        return claimed[0]

    def heartbeat(self, task: Task) -> Task:
        """Move the deadline of a running task to now plus its ttl. Raises LeaseLost."""
        return self.renew(task)

    def progress(self, task: Task, value: Any = None) -> Task:
        """Store ``value``, any JSON, as the progress of ``task``. None keeps the stored value and
        reports only that the task is moving. One statement. Raises LeaseLost, NotSerializable.
        """
        rows = self.home(task)
        said = _said(value)
        if not rows._of_grant(task).update(progressed_at=DbNow(), **said):
            raise rows._refuse(task, "progress")
        _set(task, said)
        return task

    def checkpoint(
        self, task: Task, state: Any, *, progress: Any = None, number: int | None = None
    ) -> Task:
        """Store ``state``, from which later attempts continue, in one statement.

        A checkpoint never regresses: an attempt that lost its task is refused. Raises LeaseLost,
        NotSerializable.

        Args:
            task: The task, as its holder has it.
            state: Any JSON.
            progress: Stored with it, as ``progress`` does; None keeps what is stored.
            number: Its number, from ``task.checkpoints + 1`` on: if that one or a later one is
                stored, nothing is written. None: it is the latest.
        """
        rows = self.home(task)
        said = {"checkpoint": check_json(state, "checkpoint"), **_said(progress)}
        newer = mine = rows._of_grant(task)
        count: Combinable = F("checkpoints") + 1
        if number is not None:
            count, newer = Value(number), mine.filter(checkpoints__lt=number)
        if not newer.update(progressed_at=DbNow(), checkpoints=count, **said):
            if number is not None and mine.exists():  # it has this one, or a later one
                return task
            raise rows._refuse(task, "checkpoint")
        _set(task, said)
        task.checkpoints = task.checkpoints + 1 if number is None else number
        return task

    def step(self, task: Task, name: str) -> TaskStep | None:
        """Return the step of ``task`` called ``name``; None if no attempt has finished it."""
        rows = self.home(task)
        steps = step_model()._default_manager.using(rows.db)
        step: TaskStep | None = steps.filter(task_id=task.pk, name=name).first()
        return step

    def finish_step(
        self, task: Task, name: str, output: Any = None, *, progress: Any = None
    ) -> TaskStep:
        """Store the ``output`` of a finished step. If the step was stored before, that one stays
        and is returned.

        Args:
            task: The task, as its holder has it.
            name: The name of the step, unique within the task.
            output: Any JSON.
            progress: Stored with it, as ``progress`` does; None keeps what is stored.

        Raises LeaseLost, NotSerializable, InvalidResource (the name).
        """
        rows = self.home(task)
        check_name(name, "name of the step")
        said = _said(progress)
        # As later attempts will read it: a tuple comes back as a list.
        stored = json.loads(json.dumps(check_json(output, "output of the step")))
        with atomic(rows.db):
            rows._lock(task)
            moved = rows._of_grant(task).update(progressed_at=DbNow(), **said)
            if moved:
                steps = step_model()._default_manager.using(rows.db)
                known = {"task_id": task.pk, "name": name}
                step: TaskStep = steps.get_or_create(**known, defaults={"output": stored})[0]
        if not moved:
            raise rows._refuse(task, "step")
        _set(task, said)
        return step

    # For the verbs of every leasable row

    def _chosen(self, free: Self, limit: int | None) -> dict[Any, Task]:
        return slots.choose(self, free, limit)

    def _write_grants(
        self, before: dict[Any, Task], grants: dict[Any, uuid.UUID], columns: dict[str, Any]
    ) -> None:
        slots.write(self.db, super()._write_grants, before, grants, columns)


def _claimed_before(rows: TaskRows, terms: Terms) -> list[Task]:
    """Return what the same request has claimed before and still holds, and lock it until the
    transaction ends. Raises ClaimUnderWay while it still claims, and ClaimAnswered if it was
    answered and holds nothing any more."""
    if not lock_names(rows.db, [f"leasing_tasks.claim:{terms.request_id}"]):
        raise ClaimUnderWay
    take_write_lock(rows)
    assert terms.request_id is not None
    if not _keys(rows).filter(pk=terms.request_id).exists():
        return []
    held = rows._everything().running().unexpired().with_state()
    again = list(held.filter(grant_id__range=terms.grants_of_request))
    if not again:
        raise ClaimAnswered
    return sorted(again, key=_in_order)


def _keys(rows: TaskRows) -> ClaimKeyQuerySet:
    keys: ClaimKeyQuerySet = apps.get_model("leasing_tasks", "ClaimKey")._default_manager.using(
        rows.db
    )
    return keys


def _asked(rows: RecoveryVerbs, holder: str, queues: Queues, ttl: Ttl) -> tuple[Terms, list[str]]:
    """Check what is asked for, and sweep if that is due. Returns the terms, and the queues in the
    order they are looked at."""
    terms = Terms.check(holder=check_name(holder, "holder"), ttl=ttl)
    names = [check_queue(queue) for queue in queues or task_settings.QUEUES]
    random.shuffle(names)
    rows._sweep_if_due()
    return terms, names


def _claim(rows: TaskRows, terms: Terms, queues: Sequence[str], seats: Seats) -> list[Task]:
    """Claim of every kind, in the order of all of them: in one statement, if there is one, and then
    what that leaves."""
    tasks: list[Task] = []
    has_more = True
    if one_statement.serves(rows):
        tasks, has_more = one_statement.claim(rows, terms, queues, seats)
    if has_more:
        with keeping(tasks):
            with atomic(rows.db):
                more = _claim_portably(rows, terms, queues, seats)
            tasks = sorted([*tasks, *more], key=_in_order)
    return tasks


def _claim_portably(
    rows: TaskRows, terms: Terms, queues: Sequence[str], seats: Seats
) -> list[Task]:
    claimed: list[Task] = []
    for queue in queues:
        kinds, passed = list(KINDS), False
        # Of several parts, none of which may bring a row, Django makes no union.
        while kinds and seats.room and not passed:
            first = rows.to_claim_next(queue, seats.room, "kind", kinds=kinds)
            shares, passed = Counter(kind for *_, kind in first), True
            for kind, share in shares.items():
                mine = _grant(rows.to_claim(queue, kind), terms, seats, share)
                claimed += mine
                # All others are locked, without a seat or a slot, and in nobody's way.
                if len(mine) < share:
                    kinds.remove(kind)
                    passed = False
    return claimed


def _grant(ready: TaskRows, terms: Terms, seats: Seats, limit: int) -> list[Task]:
    if not limit:
        return []
    ready.seats = seats
    granted = portable.grant(ready, terms, limit)
    seats.take(len(granted))
    return granted


def _in_order(task: Task) -> tuple[Any, ...]:
    return (-task.priority, task.scheduled_at, task.pk)


def _said(value: Any) -> dict[str, Any]:
    return {} if value is None else {"progress": check_json(value, "progress")}


def _set(task: Task, columns: dict[str, Any]) -> None:
    for name, value in columns.items():
        setattr(task, name, value)
