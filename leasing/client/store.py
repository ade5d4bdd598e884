"""The store of holds whose leases a service keeps: the contract of ``leasing.store`` over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from leasing.client.calls import LeaseCalls
from leasing.exceptions import LeaseError
from leasing.runtime.aio import drive
from leasing.runtime.event_lines import log
from leasing.store import Grant, Renewals


class ServiceStore:
    """Renews and releases grants of one service, for holds and the keeper. Its keys are
    ``leasing.client.calls.Proof``.

    All holds of a client are renewed together. A request that hangs ends by its timeout.
    """

    def __init__(self, calls: LeaseCalls) -> None:
        self._calls = calls

    def open(self) -> None:
        """Nothing to open: the first request connects."""

    def close(self) -> None:
        """Nothing to close: connections are closed with the client."""

    def abort(self) -> None:
        """Close the connections; the request under way ends by its timeout at the latest."""
        self._calls.transport.close()

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        return drive(self._calls.renew_many(list(grants), timeout=timeout))

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
