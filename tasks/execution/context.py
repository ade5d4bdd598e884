"""The context that a handler gets besides its data."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from leasing.db.dialects import durable
from leasing.exceptions import LeaseLost
from leasing.hold.held_grant import HeldGrant
from leasing.runtime.clock import clock
from tasks.execution.cancellation import Interruption
from tasks.execution.completing import Completing
from tasks.execution.progress import Progress
from tasks.querysets.claimed import ClaimedTask

if TYPE_CHECKING:
    from tasks.models import Task


class Context:
    """One attempt of one task, as its handler sees it.

    Methods that write have a twin for coroutines, whose name begins with an a. When the task is
    no longer this attempt's they raise LeaseLost: let it pass, as that of ``ensure``.
    """

    def __init__(
        self,
        task: Task | ClaimedTask,
        hold: HeldGrant,
        stopping: threading.Event,
        interruption: Interruption | None = None,
    ) -> None:
        self._given = task
        #: True if the task was ended by ``completing``.
        self.completed = False
        self._hold = hold
        self._words: Progress | None = None
        self._interruption = interruption or Interruption(stopping)
        #: Why the handler gave its task back, and for how long; None while it did not.
        self.given_back: tuple[str, timedelta] | None = None

    @property
    def task(self) -> Task:
        """The task, as it was claimed."""
        return self._given.task if isinstance(self._given, ClaimedTask) else self._given

    @property
    def claimed(self) -> Task | ClaimedTask:
        """``task``, or what the claim brought of it where nobody has looked at that."""
        return self._given

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self._given.attempts

    @property
    def fencing_token(self) -> int:
        """Greater than the token of any attempt before: let what you write to refuse less."""
        return self._hold.grant.fencing_token

    @property
    def stopping(self) -> bool:
        """Return True if the worker was asked to stop: finish soon, or ``give_back``."""
        return self._interruption.stopping.is_set()

    @property
    def cancelled(self) -> bool:
        """Return True if someone asked for the task to be cancelled."""
        return bool(self._interruption.cancelled_by)

    @property
    def state(self) -> Any:
        """The latest checkpoint, of this attempt or of one before; None where there is none."""
        return self.task.checkpoint

    def ensure(self) -> None:
        """Raise LeaseLost unless the task is surely still ours, TimeoutError once its timeout
        is over, TaskCancelled once someone asked for that. Call it between the steps of long
        work, and let the error pass: the worker knows what to make of it."""
        self._interruption.check_timeout()
        self._hold.ensure()
        self._interruption.check_cancelled()

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the worker is asked to stop. Returns ``stopping``.

        Ends early, and raises what ``ensure`` does, when there is reason to. Not for coroutines,
        which are cancelled at any await.
        """
        deadline = self._interruption.deadline
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - clock()))
        self._interruption.notified.wait(seconds)
        self.ensure()
        return self.stopping

    def give_back(self, reason: str = "", *, delay: float | timedelta = 0) -> None:
        """Set the task ready again once the handler returns, not before ``delay`` (seconds) has
        passed, with no attempt spent; what the handler returns is dropped."""
        pause = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        if pause < timedelta(0):
            raise ValueError("The delay must not be negative.")
        self.given_back = (reason or "given back by its handler", pause)

    # On the way

    def progress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """Say how far the work is: ``done`` of ``total``, and any JSON beside it. Without
        arguments: that it moves.

        Written at most once a second, but at once when ``done`` is ``total``. What waits goes
        with the next word, checkpoint or step, or as the handler ends; inside a transaction all
        of it waits. Raises LeaseLost, NotSerializable.
        """
        given = {"done": done, "total": total}
        value = {key: said for key, said in given.items() if said is not None} | more
        with self._losing():
            self._progress.say(value or None, is_last=done is not None and done == total)

    async def aprogress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """``progress``, for coroutines."""
        await sync_to_async(self.progress)(done, total, **more)

    def checkpoint(self, state: Any) -> None:
        """Store ``state``, any JSON, for a later attempt to find as ``ctx.state``. It counts as
        progress. Inside a transaction it is part of that. Raises LeaseLost, NotSerializable.
        """
        with self._losing():
            self._rows.checkpoint(self.task, state, progress=self._progress.take())

    async def acheckpoint(self, state: Any) -> None:
        """``checkpoint``, for coroutines."""
        await sync_to_async(self.checkpoint)(state)

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of ``function(*args, **kwargs)`` from the first attempt in which it
        returned; later attempts do not call it again. ``name`` tells the steps of a task apart.

        It is called again if the worker dies before the output, which is JSON, is stored; in a
        transaction of yours, what it wrote and the step are one commit. Counts as progress.
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
            said = self._progress.take()
            return self._rows.finish_step(self.task, name, output, progress=said).output

    # The end

    def completing(self, output: Any = None) -> Completing:
        """A block, ``with`` or ``async with``, whose writes to the database of the task and the
        task's completion are one commit.

            with ctx.completing() as end:
                Invoice.objects.create(...)
                end.output = {"sent": True}

        When the block raises, or the task is no longer ours, nothing of it is written. After it
        the task has ended: return, what you return is not looked at. The block is a transaction
        of its own; keep it short. Raises LeaseLost, LeaseInTransaction, NotSerializable.
        """
        return Completing(self._complete_after, output)

    @contextmanager
    def _complete_after(self, end: Completing) -> Iterator[None]:
        if self.completed:
            raise RuntimeError("The task has already been completed.")
        self.ensure()
        with self._losing(), durable(self._rows.db):
            yield
            if self._words is not None and self._words.waits:
                self._rows.progress(self.task, self._progress.take())
            # The keeper may find the task ended before this thread can say that it let go.
            self._hold.expect_end()
            self._rows.complete(self.task, end.output)
        self.completed = True
        self._hold.abandon()

    def flush(self) -> None:
        """Write what was said of the progress and waits. The worker calls it as the handler
        ends. Raises nothing."""
        # Not without the hold, or the refusal of what matters more would not be noted.
        if self._words is not None and self._hold.valid:
            self._words.flush()

    async def aflush(self) -> None:
        """``flush``, for coroutines."""
        if self._words is not None and self._words.waits:
            await sync_to_async(self.flush)()

    @property
    def _progress(self) -> Progress:
        if self._words is None:
            self._words = Progress(self.task)
        return self._words

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
            if loss.resource == self._hold.grant.resource:
                self._hold.mark_lost(loss.reason)
            raise
