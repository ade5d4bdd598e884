"""The store of holds whose leases a service keeps: the contract of ``leasing.store`` over HTTP."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar

from leasing.client.calls import LeaseCalls, Proof
from leasing.client.exceptions import ServiceUnavailable
from leasing.exceptions import LeaseError
from leasing.runtime.aio import Steps, drive
from leasing.runtime.event_lines import log
from leasing.runtime.threads import start_thread
from leasing.store import Grant, Renewals

Result = TypeVar("Result")


class ServiceStore:
    """Renews and releases grants of one service, for holds and the keeper. Its keys are
    ``leasing.client.calls.Proof``.

    All holds of a client are renewed together.
    """

    #: True, since a service pays for each request, not for each lease: see ``leasing.renewable``.
    is_metered = True

    def __init__(self, calls: LeaseCalls) -> None:
        self._calls = calls
        self._errand = Errand()
        self._renewer = 0

    def open(self) -> None:
        """Have requests of this thread, the renewing one, made so that they can be aborted."""
        self._renewer = threading.get_ident()

    def close(self) -> None:
        """Forget the thread: another may get its number. Connections are closed with the client."""
        self._renewer = 0

    def abort(self) -> None:
        """Give up the request under way. Its own thread ends by its timeout."""
        self._errand.give_up()

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        renew = partial(drive, self.renewing(list(grants), timeout))
        if threading.get_ident() == self._renewer:
            return self._errand.run(renew)
        return renew()

    def renewing(self, proofs: Sequence[Proof], timeout: float) -> Steps[Renewals]:
        """Return the steps that renew all ``proofs``, within ``timeout`` seconds."""
        return self._calls.renew_many(proofs, timeout)

    def release(self, grant: Grant) -> None:
        drive(self._calls.release(grant))

    def lost(self, grant: Grant, reason: str) -> None:
        log.lease_lost(grant.row, reason=reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Arguments are those of ``Store.refused``."""
        log.lease_refused(row, verb=verb, reason=reason)

    def proving(self, row: Any) -> AbstractContextManager[None]:
        """Refuse: no transaction spans a service. Raises LeaseError."""
        raise LeaseError(
            f"{row.lease_resource} is kept by a service: no transaction can commit together with "
            "it. Write the fencing token with your data instead (FencedModel)."
        )


class Errand:
    """A call that the thread which waits for it can leave behind.

    The renewing thread renews the holds of every store. A socket that another thread closes does
    not wake who reads from it, and nothing ends the resolution of a name: so a request is sent by a
    thread of its own.
    """

    def __init__(self) -> None:
        self._under_way: Future[Any] | None = None

    def run(self, call: Callable[[], Result]) -> Result:
        """Return what ``call`` does, or raise what it raises; ServiceUnavailable once it is given
        up, and RuntimeError if no thread can be started."""
        self._under_way = future = Future[Result]()
        start_thread("leasing-request", partial(_fulfil, future, call))
        try:
            return future.result()
        finally:
            self._under_way = None

    def give_up(self) -> None:
        """End the wait of ``run``, from another thread."""
        future = self._under_way
        if future is not None:
            with suppress(InvalidStateError):  # it has just been answered
                future.set_exception(ServiceUnavailable("No answer in time."))


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        answer = call()
    except BaseException as error:
        with suppress(InvalidStateError):  # it was given up
            future.set_exception(error)
    else:
        with suppress(InvalidStateError):
            future.set_result(answer)
