"""A request that the thread which waits for it can leave behind."""

from __future__ import annotations

import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from leasing.exceptions import StoreError
from leasing.runtime.threads import start_thread
from leasing.store import Renewals

Result = TypeVar("Result")


class RenewsApart:
    """The part of a store that the renewing thread uses, which renews the holds of every store.

    A socket that another thread closes does not wake who reads from it, and nothing ends the
    resolution of a name: so a renewal is sent by a thread of its own.
    """

    _renewer = 0
    _under_way: Future[Renewals] | None = None

    @abstractmethod
    def renew_here(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        """Renew ``grants`` on this thread: see ``leasing.store.Store.renew``."""

    def late(self) -> Exception:
        """Return the error of a renewal that was left behind."""
        return StoreError(f"{self} does not answer in time.")

    def open(self) -> None:
        """Have the renewals of this thread, the renewing one, made so that they can be left."""
        self._renewer = threading.get_ident()

    def close(self) -> None:
        """Forget the thread: another may get its number."""
        self._renewer = 0

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        """See ``leasing.store.Store``. Raises RuntimeError if no thread can be started."""
        if threading.get_ident() != self._renewer:
            return self.renew_here(grants, timeout)
        # noted before it is sent, or an abort in between would find nothing to leave
        self._under_way = future = Future[Renewals]()
        try:
            return send(partial(self.renew_here, grants, timeout), future).result()
        finally:
            self._under_way = None

    def abort(self) -> None:
        """Leave the renewal under way behind. Its own thread ends by its time-out."""
        future = self._under_way
        if future is not None:
            with suppress(InvalidStateError):  # it has just been answered
                future.set_exception(self.late())


def send(call: Callable[[], Result], future: Future[Result] | None = None) -> Future[Result]:
    """Return ``future``, or a new one, with what becomes of ``call``, which a thread of its own has
    begun. Raises RuntimeError if none can be started."""
    answered = Future[Result]() if future is None else future

    def fulfil() -> None:
        with suppress(InvalidStateError):  # it was given up
            try:
                answer = call()
            except BaseException as error:
                answered.set_exception(error)
            else:
                answered.set_result(answer)

    start_thread("leasing-request", fulfil)
    return answered
