"""A call that the thread which waits for it can leave behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from leasing.runtime.threads import start_thread

Result = TypeVar("Result")


class Errand:
    """The request of the renewing thread, which renews the holds of every store.

    A socket that another thread closes does not wake who reads from it, and nothing ends the
    resolution of a name: so a request is sent by a thread of its own.
    """

    def __init__(self) -> None:
        self._under_way: Future[Any] | None = None
        self._renewer = 0

    def open(self) -> None:
        """Have the calls of this thread, the renewing one, made so that they can be given up."""
        self._renewer = threading.get_ident()

    def close(self) -> None:
        """Forget the thread: another may get its number."""
        self._renewer = 0

    def run(self, call: Callable[[], Result]) -> Result:
        """Return what ``call`` does, or raise what it raises; on the renewing thread the error of
        ``give_up`` too, and RuntimeError if no thread can be started."""
        if threading.get_ident() != self._renewer:
            return call()
        self._under_way = future = send(call)
        try:
            return future.result()
        finally:
            self._under_way = None

    def give_up(self, error: Exception) -> None:
        """End the wait of ``run`` with ``error``, from another thread."""
        future = self._under_way
        if future is not None:
            with suppress(InvalidStateError):  # it has just been answered
                future.set_exception(error)


def send(call: Callable[[], Result]) -> Future[Result]:
    """Return what becomes of ``call``, which a thread of its own has begun. Raises RuntimeError if
    none can be started."""
    future = Future[Result]()
    start_thread("leasing-request", partial(_fulfil, future, call))
    return future


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        answer = call()
    except BaseException as error:
        with suppress(InvalidStateError):  # it was given up
            future.set_exception(error)
    else:
        with suppress(InvalidStateError):
            future.set_result(answer)
