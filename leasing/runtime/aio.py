"""Runs the synchronous core for async callers, and drives logic written once for both.

Database calls of leases run on threads of their own: the default thread of ``sync_to_async`` is
shared with the caller's code, and a release should not wait behind it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from leasing.runtime.framework import close_old_connections

Result = TypeVar("Result")


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix="leasing-async")


_executor = _threads()


def _patient_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(64, thread_name_prefix="leasing-waits")


#: For calls that wait for somebody else, whose release may wait for a thread of the others.
_patient = _patient_threads()

#: Tests inside a transaction of their own want the caller's thread, and so its connection.
on_callers_thread = False


class Pause(Protocol):
    """A wait, which threads and event loops each do in their own way."""

    def wait(self) -> object: ...
    async def await_(self) -> object: ...


@dataclass(slots=True)
class Undoable:
    """A call to the database. A thread cannot be cancelled: when its caller was, meanwhile,
    what it brought has nobody to give it back, and is undone."""

    call: Callable[[], Any]
    undo: Callable[[Any], object]

    def __call__(self) -> Any:
        return self.call()


#: Logic written once, which yields to its driver a call or a pause.
Steps = Generator[Callable[[], Any] | Pause, Any, Result]


async def in_thread(call: Callable[..., Result], *args: Any, waits: bool = False) -> Result:
    """Run ``call`` on a thread that may use the database; one that ``waits`` for somebody else
    keeps no other from its thread."""
    if on_callers_thread:
        return await _on_callers_thread(call, *args)
    future = (_patient if waits else _executor).submit(copy_context().run, _work, call, *args)
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(future: Future[Result]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(tell)
    try:
        # Not the future itself, which would be cancelled with the caller: a call that waits for
        # its thread would never be made, and it may be the release.
        await done.wait()
    except asyncio.CancelledError:
        if isinstance(call, Undoable) and not future.cancel():
            future.add_done_callback(partial(_undo, call))
        raise
    return future.result()


def run_later(call: Callable[[], object], *, waits: bool = False) -> None:
    """Run ``call`` on a thread as ``in_thread`` does; nobody waits for it."""
    (_patient if waits else _executor).submit(_work, call)


async def _on_callers_thread(call: Callable[..., Result], *args: Any) -> Result:
    from asgiref.sync import sync_to_async  # comes with Django, which clients may not have

    work = asyncio.ensure_future(sync_to_async(call)(*args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        result = (await asyncio.gather(work, return_exceptions=True))[0]
        if isinstance(call, Undoable) and not isinstance(result, BaseException):
            await sync_to_async(call.undo)(result)
        raise


def _work(call: Callable[..., Result], *args: Any) -> Result:
    close_old_connections()
    try:
        return call(*args)
    finally:
        close_old_connections()


def _undo(step: Undoable, done: Future[Any]) -> None:
    # Not here: this may be the thread of the event loop.
    if not done.cancelled() and done.exception() is None:
        run_later(partial(step.undo, done.result()))


def drive(steps: Steps[Result]) -> Result:
    """Do what ``steps`` ask for, on this thread."""
    answer, error = None, None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: Result = end.value
                return result
            answer, error = None, None
            try:
                answer = step() if callable(step) else step.wait()
            except Exception as raised:
                error = raised
    finally:
        error = None  # or it would have itself in its traceback
        steps.close()


def altered(steps: Steps[Result], alter: Callable[[Any], Any]) -> Steps[Result]:
    """The same ``steps``, each of them as ``alter`` returns it."""
    with closing(steps):
        send: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                step = send()
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                answer = yield alter(step)
            except Exception as error:
                send = partial(steps.throw, error)
            else:
                send = partial(steps.send, answer)


async def adrive(steps: Steps[Result]) -> Result:
    """Do what ``steps`` ask for, without blocking the event loop."""
    with closing(steps):
        send: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                step = send()
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                answer = await (in_thread(step) if callable(step) else step.await_())
            except Exception as error:
                send = partial(steps.throw, error)
            else:
                send = partial(steps.send, answer)


def _after_fork() -> None:
    # The child has none of the threads, and would wait for one of them.
    global _executor, _patient
    _executor, _patient = _threads(), _patient_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
