"""The context that a handler gets in addition to its data.

A handler may report as often as it likes: reports are written at most once in ``EVERY`` seconds.
One that came too soon waits, and is written with the next report, checkpoint or step, or when the
handler ends. Inside a transaction nothing is written either: nobody would see it, and the row,
locked until the commit, could not be renewed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import Error, transaction

from leasing.db.dialects import in_transaction, refuse_transaction
from leasing.exceptions import LeaseLost
from leasing.runtime.clock import clock
from tasks.log import log
from tasks.payload import check_json
from tasks.querysets.compensation import Compensated, compensated
from tasks.runtime.attempt_context import AttemptContext

if TYPE_CHECKING:
    from tasks.execution.attempt import Attempt
    from tasks.models import Task
    from tasks.querysets.claimed import ClaimedTask

#: Seconds between writes of progress.
EVERY = 1.0


class Completing:
    """A block at whose end the task is completed, in the block's own transaction: ``with
    ctx.completing():``, one commit for the handler's own writes and its task's end.

    ``output``, what the task gives back, may be set until the block ends. ``async with`` opens
    the transaction on the thread that the coroutine's own queries run on.
    """

    def __init__(
        self, block: Callable[[Completing], AbstractContextManager[None]], output: Any
    ) -> None:
        self.output = output
        self._block = block(self)
        self._entered = False

    def __enter__(self) -> Completing:
        self._block.__enter__()
        self._entered = True
        return self

    def __exit__(self, *how: Any) -> bool | None:
        return self._block.__exit__(*how)

    async def __aenter__(self) -> Completing:
        try:
            await _to_its_end(self.__enter__)
        except asyncio.CancelledError as error:
            if self._entered:
                await _to_its_end(self.__exit__, type(error), error, None)
            raise
        return self

    async def __aexit__(self, *how: Any) -> bool | None:
        ended: bool | None = await _to_its_end(self.__exit__, *how)
        return ended


async def _to_its_end(call: Callable[..., Any], *args: Any) -> Any:
    """Await ``call`` on the thread for queries. A thread cannot be cancelled: when the caller
    is, its transaction is to be left in a known state before anything else happens."""
    work = asyncio.ensure_future(sync_to_async(call)(*args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.gather(work, return_exceptions=True)
        raise


class Context(AttemptContext):
    """One attempt of one task, as its handler sees it.

    Methods that write have a twin for coroutines, whose name begins with an a. They raise
    LeaseLost when the task no longer belongs to this attempt: let it propagate, as from ``ensure``.
    """

    # Defaults are the class's until they are set.
    #: True if the task was ended by ``completing``.
    completed: bool = False
    #: The progress that waits to be written, and True if any does.
    _waiting: Any = None
    _waits: bool = False
    #: The moment of the latest write.
    _written_at: float = float("-inf")

    _attempt: Attempt
    claimed: ClaimedTask

    @property
    def task(self) -> Task:
        """The task, as it was claimed. A column that the claim did not return is read on first use;
        a coroutine calls ``load`` before."""
        return self.claimed.ended_task

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.claimed.attempts

    @property
    def fencing_token(self) -> int:
        """Greater than the token of any earlier attempt: let your targets reject lower ones."""
        return self.claimed.fencing_token

    @property
    def state(self) -> Any:
        """The latest checkpoint, of this or an earlier attempt; None if there is none. Read on
        first use; a coroutine calls ``load`` before."""
        return self.task.checkpoint

    async def load(self) -> Task:
        """Read the columns of ``task`` that the claim did not return, and return it: a coroutine
        must not wait for the database where it uses one. Raises LeaseLost."""
        await sync_to_async(self._load)()
        return self.task

    # During the attempt

    def progress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """Report how far the work is: ``done`` of ``total``, and any further JSON. Without
        arguments it reports only that the work is moving.

        Reports are written at most once a second, and at once when ``done`` is ``total``. One that
        waits is written with the next report, checkpoint or step, or when the handler ends.
        Inside a transaction all of them wait. Raises LeaseLost, NotSerializable.
        """
        value = check_json(self._report(done, total, more), "progress")
        self._waiting, self._waits = value or self._waiting, True
        timeout, every = self.claimed.progress_timeout, EVERY
        if timeout is not None:
            # A report that waits here must not look like a stalled handler.
            every = min(EVERY, timeout.total_seconds() / 3)
        is_last = done is not None and done == total
        is_due = is_last or clock() - self._written_at >= every
        if is_due and not in_transaction(self._rows.db):
            with self._losing():
                self._write_progress()

    async def aprogress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """``progress``, for coroutines."""
        await sync_to_async(self.progress)(done, total, **more)

    def checkpoint(self, state: Any) -> None:
        """Store ``state``, any JSON; later attempts find it in ``ctx.state``. It counts as
        progress. Inside a transaction it is part of that. Raises LeaseLost, NotSerializable.
        """
        with self._losing():
            self._rows.checkpoint(self.task, state, progress=self._take_progress())

    async def acheckpoint(self, state: Any) -> None:
        """``checkpoint``, for coroutines."""
        await sync_to_async(self.checkpoint)(state)

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function(*args, **kwargs)`` unless an earlier attempt has finished this step, and
        return its result, or the stored one. ``name`` identifies the step within its task.

        The result is JSON. If the worker dies before it is stored, the function is called again.
        In a transaction of yours, its writes and the step are one commit. Counts as progress.
        Raises LeaseLost, NotSerializable, and what ``function`` raises.
        """
        if iscoroutinefunction(function):
            raise TypeError("Use `await ctx.astep(...)` for a step that is a coroutine.")
        known = self._rows.step(self.task, name)
        if known is not None:
            return known.output
        self.ensure()
        return self._finish(name, function(*args, **kwargs))

    async def astep(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """``step``, for coroutines; ``function`` may be one, or plain."""
        known = await sync_to_async(self._rows.step)(self.task, name)
        if known is not None:
            return known.output
        self.ensure()
        is_async = iscoroutinefunction(function)
        call: Callable[..., Awaitable[Any]] = function if is_async else sync_to_async(function)
        output = await call(*args, **kwargs)
        return await sync_to_async(self._finish)(name, output)

    def _finish(self, name: str, output: Any) -> Any:
        with self._losing():
            said = self._take_progress()
            return self._rows.finish_step(self.task, name, output, progress=said).output

    def compensated(self) -> Compensated:
        """Return the failed task that this one compensates, as its handler's ``compensate`` says,
        and the steps that it has finished, the last first.

        Raises GiveUp if this task compensates none, or none that is still there.
        """
        return compensated(self._rows, self.task)

    async def acompensated(self) -> Compensated:
        """``compensated``, for coroutines."""
        return await sync_to_async(self.compensated)()

    # The end

    def completing(self, output: Any = None) -> Completing:
        """A block (``with`` or ``async with``) that commits its writes to the task's database
        together with the task's completion.

            with ctx.completing() as end:
                Invoice.objects.create(...)
                end.output = {"sent": True}

        If the block raises, or this attempt has lost the task, none of its writes is committed.
        After the block the task has ended: return, the return value is ignored. The block is a
        transaction of its own; keep it short. Raises LeaseLost, LeaseInTransaction,
        NotSerializable.
        """
        return Completing(self._complete_after, output)

    @contextmanager
    def _complete_after(self, end: Completing) -> Iterator[None]:
        if self.completed:
            raise RuntimeError("The task has already been completed.")
        self.ensure()
        using = self._rows.db
        refuse_transaction(using)
        # At the isolation level that the site asks for: the writes are its own.
        with self._losing(), transaction.atomic(using=using):
            yield
            if self._waits:
                self._write_progress()
            # The keeper may find the task ended before this thread has stopped its renewals.
            self._attempt.expect_end()
            self._rows.complete(self.task, end.output)
        self.completed = True
        self._attempt.detach()

    def flush(self) -> None:
        """Write the progress that still waits. The worker calls it when the handler ends, before
        the result is stored, which matters more. Raises nothing."""
        # Not after a loss: its refusal would be recorded in place of the result's.
        if not self._waits or not self._attempt.valid:
            return
        try:
            self._write_progress()
        except (LeaseLost, Error) as error:
            # A loss has been logged already.
            level = INFO if isinstance(error, LeaseLost) else WARNING
            log.task_progress_dropped(self.task, level=level, error=error)

    async def aflush(self) -> None:
        """``flush``, for coroutines."""
        if self._waits:
            await sync_to_async(self.flush)()

    def _write_progress(self) -> None:
        self._rows.progress(self.task, self._take_progress())

    def _take_progress(self) -> Any:
        """Return the progress that waits, for a statement that writes it."""
        value, self._waiting, self._waits = self._waiting, None, False
        self._written_at = clock()
        return value

    def _load(self) -> None:
        task, rows = self.task, self._rows
        if missing := task.get_deferred_fields():
            mine = rows.filter(grant_id=task.grant_id)
            with self._losing():
                try:
                    task.refresh_from_db(fields=missing, from_queryset=mine)
                except task.DoesNotExist:
                    raise rows.home()._refuse(task, "load") from None

    @property
    def _rows(self) -> Any:
        # Not imported: modules that only name this class may be loaded before models are.
        return type(self.task).objects.using(self.task._state.db)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Report a loss to the hold before the keeper finds it."""
        try:
            yield
        except LeaseLost as loss:
            if loss.resource == self._attempt.resource:
                self._attempt.mark_lost(loss.reason)
            raise
