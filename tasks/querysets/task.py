"""Every public verb on tasks. Each is implemented in the module named after its caller.

One class and one long file, for the types of managers are read from the definitions of methods.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from asgiref.sync import sync_to_async

from leasing.querysets.claim import Claim
from tasks.exceptions import Snooze
from tasks.producer import EnqueueOptions, ManyOptions, Parent, refuse_unknown
from tasks.querysets import (
    completions,
    ends,
    operator,
    producer,
    recovery,
    relay,
    slots,
    unbegun,
    worker,
)
from tasks.querysets.base import TaskRows
from tasks.querysets.claim_request import ClaimRequest
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.columns import new_task
from tasks.querysets.ends import Refused
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.querysets.transitions import cancellation
from tasks.querysets.unique import OnDuplicate, UniqueFor

if TYPE_CHECKING:
    from tasks.models import Task, TaskStep


class TaskQuerySet(TaskRows):
    """Tasks: ``Task.objects``."""

    kept_for = TaskRows.kept_for | {"enqueue", "enqueue_many", "take"}

    # Producers

    def enqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        delay: float | timedelta | None = None,
        unique_key: str | None = None,
        unique_for: str | float | timedelta = UniqueFor.FINISHED.value,
        on_duplicate: str = OnDuplicate.SKIP.value,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        progress_timeout: float | timedelta | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        parent: Parent | None = None,
        **unknown: Never,
    ) -> Task:
        """Store a task, as part of the caller's transaction if there is one.

        Args:
            name_or_handler: The name of the task, or its handler.
            data: The handler's keyword arguments.
            queue: The queue; the handler's by default.
            priority: A number from -32768 to 32767; higher goes first.
            scheduled_at: The earliest time at which it starts.
            delay: The same in seconds from now, by the database's clock.
            unique_key: A key that one task has at a time. Another enqueue with the key returns that
                task, with ``is_duplicate`` set, and stores nothing.
            unique_for: How long the task keeps that key: "waiting" (until its claim), "running"
                (until its first attempt ends), "finished", or a window in seconds.
            on_duplicate: The effect on a waiting task with that key: "skip" leaves it, "replace"
                gives it the arguments of this call, "keep_time" does so except for its time.
            idempotency_key: A key that returns the same task again, ended or not.
            max_attempts: The number of attempts; the handler's by default.
            timeout: Seconds that one attempt may run; the handler's by default.
            progress_timeout: Seconds without progress in one attempt; the handler's by default.
            concurrency_key: Tasks that share this key are limited together; the handler's by
                default. Used literally, without a template; empty: no key.
            concurrency_limit: The number of tasks of that key that run at a time; the handler's by
                default.
            parent: The task with which this one is cancelled: a Task, its key, or the context of
                its handler. A parent that has ended is never cancelled, so neither is this one.

        Raises UnknownTask, UnknownQueue, InvalidArguments (the handler does not take the data),
        NotSerializable, InvalidResource (a key), ValueError, PayloadMismatch (the idempotency key
        was used for another task or other data), KeyBusy (another transaction has locked the task
        that has the unique key).
        """
        refuse_unknown("enqueue", unknown.keys())
        new = new_task(
            self,
            name_or_handler,
            data,
            queue=queue,
            priority=priority,
            scheduled_at=scheduled_at,
            delay=delay,
            unique_key=unique_key,
            unique_for=unique_for,
            on_duplicate=on_duplicate,
            idempotency_key=idempotency_key,
            max_attempts=max_attempts,
            timeout=timeout,
            progress_timeout=progress_timeout,
            concurrency_key=concurrency_key,
            concurrency_limit=concurrency_limit,
            parent=parent,
        )
        return producer.enqueue(self, new, on_duplicate)

    async def aenqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Task:
        """``enqueue``, for async code."""
        refuse_unknown("aenqueue", options.keys())
        return await sync_to_async(self.enqueue)(name_or_handler, data, **options)

    def enqueue_on_commit(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        using: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> None:
        """Check the arguments now, and store the task once the caller's transaction has committed.

        Outside of a transaction the task is stored at once; after a rollback it is not stored. A
        delay counts from the commit.

        This is for transactions on another database than that of the tasks. In the same database
        use ``enqueue``: its task cannot get lost between the commit and the INSERT. Errors are
        those of ``enqueue``. PayloadMismatch and errors of the database are raised by the commit.

        Args:
            name_or_handler: The name of the task, or its handler.
            data: The handler's keyword arguments.
            using: The alias of the transaction's database; that of the tasks by default.
            options: The other arguments of ``enqueue``.
        """
        refuse_unknown("enqueue_on_commit", options.keys())
        producer.enqueue_on_commit(self.home(), name_or_handler, data, using, **options)

    def enqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        **options: Unpack[ManyOptions],
    ) -> Sequence[Task]:
        """Store one task for each of ``data``, all or none. Arguments and errors are those of
        ``enqueue``; there are no unique and no idempotency keys.

        The sequence makes the instances when they are read.
        """
        refuse_unknown("enqueue_many", options.keys(), ManyOptions)
        return producer.enqueue_many(self.home(), name_or_handler, data, **options)

    async def aenqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        **options: Unpack[ManyOptions],
    ) -> Sequence[Task]:
        """``enqueue_many``, for async code."""
        refuse_unknown("aenqueue_many", options.keys(), ManyOptions)
        return await sync_to_async(self.enqueue_many)(name_or_handler, data, **options)

    # Workers

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
        return worker.claim(self.home(), holder, queues, limit, ttl, free, request_id)

    def note_empty_claim(self, holder: str, request_id: uuid.UUID) -> Claim[Task]:
        """Remember that the call of ``claim`` with this ``request_id`` is answered with no task, so
        that a repetition which comes late claims nothing. Returns what one that came first has
        claimed. Arguments and errors are those of ``claim``."""
        return worker.note_empty_claim(self.home(), holder, request_id)

    def take(
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
        requests: Sequence[ClaimRequest] | None = None,
        cursor: ClaimCursor | None = None,
    ) -> list[ClaimedTask]:
        """``claim`` for workers, without model instances unless something needs them: of each kind
        in its order, and what ``requests`` ask for; by default ``limit`` tasks of any kind. It goes
        on where the claim before with the same ``cursor`` has ended. Further arguments and errors
        are those of ``claim``."""
        asked = [ClaimRequest(limit)] if requests is None else requests
        return worker.take(self.home(), holder, queues, asked, ttl, cursor or ClaimCursor())

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
        return worker.take_one(self.home(), key, holder, queue, ttl)

    def heartbeat(self, task: Task) -> Task:
        """Move the deadline of a running task to now plus its ttl. Raises LeaseLost."""
        return self.renew(task)

    def progress(self, task: Task, value: Any = None) -> Task:
        """Store ``value``, any JSON, as the progress of ``task``. None keeps the stored value and
        reports only that the task is moving. One statement. Raises LeaseLost, NotSerializable.
        """
        return worker.progress(self.home(task), task, value)

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
        return worker.checkpoint(self.home(task), task, state, progress, number)

    def step(self, task: Task, name: str) -> TaskStep | None:
        """Return the step of ``task`` called ``name``; None if no attempt has finished it."""
        return worker.step(self.home(task), task, name)

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
        return worker.finish_step(self.home(task), task, name, output, progress)

    def complete(self, task: Task, output: Any = None, *, unexpired: bool = False) -> Task:
        """Store ``output`` and end the task as succeeded, as part of the caller's transaction if
        there is one.

        Args:
            task: The task, as its holder has it.
            output: Any JSON.
            unexpired: True to require also that the deadline has not passed.

        Raises LeaseLost when this grant no longer has the task (the output is dropped, and the
        attempt records the refusal), NotSerializable.
        """
        rows = self.home(task)
        return ends.alone(ends.complete(rows, [(task, output)], unexpired=unexpired))

    def complete_many(self, results: Iterable[tuple[Task, Any]]) -> tuple[list[Task], Refused]:
        """``complete`` each task with its output, from pairs of both. Returns the completed tasks,
        and the others, each with its error (LeaseLost, NotSerializable, DataError)."""
        return ends.complete(self.home(), list(results))

    def complete_claimed(self, results: Iterable[tuple[ClaimedTask, Any]]) -> completions.Refused:
        """``complete_many`` for workers: it reads nothing back unless a receiver needs it. Returns
        the tasks that are not completed, each with its error."""
        return completions.complete_claimed(self.home(), results)

    def fail(self, task: Task, error: BaseException | str, *, unexpired: bool = False) -> Task:
        """End this attempt as failed, and retry the task after a pause or fail it.

        The retry policy of its handler decides about the pause, or TASK_QUEUE["BACKOFF"] if this
        process does not know the handler. The task has failed when its attempts are used up, the
        error is a GiveUp, or the policy gives up. Raises LeaseLost.

        Args:
            task: The task, as its holder has it.
            error: The error; a policy gets text as a TaskError.
            unexpired: True to require also that the deadline has not passed.
        """
        rows = self.home(task)
        return ends.alone(ends.fail(rows, [(task, error)], unexpired=unexpired))

    def fail_many(
        self, failures: Iterable[tuple[Task, BaseException | str]]
    ) -> tuple[list[Task], Refused]:
        """``fail`` each task with its error, from pairs of both. Returns the tasks whose attempt is
        ended, and the others, each with its error (LeaseLost)."""
        return ends.fail(self.home(), list(failures))

    def give_back(
        self, task: Task, reason: str, *, delay: timedelta = timedelta(0), begun: bool = True
    ) -> Task:
        """Make a running task ready again without spending the attempt. Raises LeaseLost.

        If several attempts are given back for the same reason, the history keeps the latest, so
        that a task that is given back every minute does not fill it.

        Args:
            task: The task, as its holder has it.
            reason: The reason, for the history.
            delay: The time until it may start again.
            begun: False if its handler was never called: the history does not mention it.
        """
        return ends.alone(ends.give_back(self.home(task), [task], reason, delay, begun=begun))

    def give_back_many(
        self, tasks: list[Task], reason: str, *, begun: bool = True
    ) -> tuple[list[Task], Refused]:
        """``give_back`` each of ``tasks`` for the same ``reason``. Returns those that are ready
        again, and the others, each with its error (LeaseLost)."""
        return ends.give_back(self.home(), tasks, reason, begun=begun)

    def give_back_claimed(self, claimed: Sequence[ClaimedTask], reason: str) -> completions.Refused:
        """``give_back_many`` for workers, of tasks whose handler was never called: it reads nothing
        back unless a receiver needs it. Returns the refused ones, each with its error."""
        return unbegun.give_back_claimed(self.home(), claimed, reason)

    def snooze(self, task: Task, delay: float | timedelta, reason: str = "") -> Task:
        """Postpone a running task, as its handler requested, without spending the attempt.
        Checkpoint and steps stay. The history keeps the latest snooze. Raises LeaseLost, ValueError
        (the delay).

        Args:
            task: The task, as its holder has it.
            delay: Seconds, or a timedelta, until it is tried again.
            reason: The reason, for the history.
        """
        nap = Snooze(delay, reason)
        return ends.alone(ends.snooze(self.home(task), task, nap))

    def accept_cancel(self, task: Task, by: str = "") -> Task:
        """End a running task as cancelled, after its holder has stopped at the request of ``by``.
        Raises LeaseLost."""
        return ends.alone(ends.accept_cancel(self.home(task), task, cancellation(by)))

    def release(self, row: Task) -> Task:
        """``give_back`` the task."""
        return self.give_back(row, "released by its holder")

    # Operators

    def cancel(self, by: str = "", reason: str = "") -> int:
        """Cancel these tasks in the name of ``by``. Waiting ones end at once. Running ones are
        asked to stop, and end at their handler's next ``ctx.ensure()`` or await.

        Returns how many ended or were asked now, not those that had ended or were asked before.
        """
        return operator.cancel(self.home(), by, reason)

    async def acancel(self, by: str = "", reason: str = "") -> int:
        """``cancel``, for async code."""
        return await sync_to_async(self.cancel)(by, reason)

    def retry(self, by: str = "") -> int:
        """Make failed and cancelled tasks ready again, with one more attempt if all were used.
        Returns how many.

        Each transaction has some hundred; if a later one fails, the earlier ones stay committed. A
        task whose unique key another task has by now stays as it is.
        """
        return operator.retry(self.home(), by)

    async def aretry(self, by: str = "") -> int:
        """``retry``, for async code."""
        return await sync_to_async(self.retry)(by)

    def reschedule(
        self,
        *,
        queue: str | None = None,
        scheduled_at: datetime | None = None,
        priority: int | None = None,
        by: str = "",
    ) -> int:
        """Move waiting tasks to another queue, time or priority, some hundred per transaction.
        Returns how many.

        Args:
            queue: The new queue; None: unchanged.
            scheduled_at: The new time; None: unchanged.
            priority: The new priority; None: unchanged.
            by: The operator.

        Raises UnknownQueue; ValueError when none is given, the time has no zone, or the priority is
        out of bounds.
        """
        return operator.reschedule(self.home(), queue, scheduled_at, priority, by)

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take running tasks from their holders, as recovery would, without waiting for the
        deadline. They may start again at once. What a holder has done is not undone; its late
        result is refused."""
        return recovery.revoke(self.home(), reason, by)

    def discard(self, by: str = "") -> int:
        """Delete those of these tasks that have ended, with their attempts and steps, some hundred
        per transaction. Returns how many. A task that a row of another app protects stays."""
        return operator.discard(self.home(), by)

    def prune(self, age: timedelta, limit: int = operator.BULK_BATCH) -> int:
        """Delete up to ``limit`` of these tasks that ended ``age`` ago or earlier, the oldest
        first, in one transaction. Returns how many; call again while it is ``limit``.

        Locked rows are skipped, so any number of processes may prune at a time. A task whose unique
        key is kept for a window stays until the window ends. A task that a row of another app
        protects stays as long as that row does.
        """
        return operator.prune(self.home(), age, limit)

    # Recovery

    def recover(self, limit: int = recovery.SWEEP_BATCH) -> int:
        """Take stuck tasks from holders that are gone. They become ready, each after the pause
        of TASK_QUEUE["BACKOFF"], or failed after their last attempt, with a higher token. Returns
        how many; call again while it is ``limit``.

        Any number of processes may recover at a time: each takes rows that the others have not.
        """
        return recovery.recover(self.home(), limit)

    def recover_stalled(self, limit: int = recovery.SWEEP_BATCH) -> int:
        """Take stalled tasks from holders that are alive but report no progress, as ``recover``
        does. The holder's later writes are refused; it learns of the loss at its next heartbeat."""
        return recovery.recover_stalled(self.home(), limit)

    def take_from_dead(self, reason: str, at_least: timedelta) -> int:
        """Take running tasks from a holder that was seen to die, as ``recover`` does, without
        waiting for the deadline. None starts again before ``at_least``. Returns how many."""
        return recovery.take_from_dead(self.home(), reason, at_least)

    def next_lapse_in(self) -> float | None:
        """Return the seconds until recovery would take the next running task, unless it is renewed:
        0 if there is one now; None if none is running. A sweep that finds nothing makes only this
        query."""
        return recovery.next_lapse_in(self.home())

    # The relay

    def unpublished(self) -> Self:
        """Return the tasks that a worker could claim now, and that no message announces."""
        return self.ready().filter(relay.NO_MESSAGE)

    def window(self, queue: str, size: int, patience: float) -> relay.Window:
        """Return which of the first ``size`` tasks of ``queue`` to publish, and whose message is
        late."""
        return relay.window(self.home(), queue, size, patience)

    def mark_published(self, keys: Sequence[int], patience: float) -> list[int]:
        """Record that messages for ``keys`` are about to be sent, within the caller's transaction,
        which proves its term. Returns the recorded ones, in their order."""
        return relay.mark_published(self.home(), keys, patience)

    def unpublish(self, keys: Sequence[int]) -> int:
        """Record that no message for ``keys`` is under way: it was not sent, or it arrived while
        the task could not be claimed. Returns how many of them are still to be claimed."""
        return relay.unpublish(self.home(), keys)

    # For the verbs of every leasable row

    def note_refused(self, row: Task, verb: str, reason: str) -> None:
        recovery.note_refused(self, row, verb)

    def _chosen(self, free: Self, limit: int | None) -> dict[Any, Task]:
        return slots.choose(self, free, limit)

    def _write_grants(
        self, before: dict[Any, Task], grants: dict[Any, uuid.UUID], columns: dict[str, Any]
    ) -> None:
        slots.write(self.db, super()._write_grants, before, grants, columns)
