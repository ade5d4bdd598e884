"""The store of holds whose leases a service keeps: the contract of ``leasing.store`` over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from leasing.client.calls import LeaseCalls, Proof
from leasing.client.exceptions import ServiceUnavailable
from leasing.exceptions import LeaseError
from leasing.holding.errand import RenewsApart
from leasing.holding.term import Term
from leasing.runtime.aio import Steps, drive
from leasing.runtime.event_lines import log
from leasing.store import Renewals


class ServiceStore(RenewsApart):
    """Renews and releases grants of one service, for holds and the keeper. Its keys are
    ``leasing.client.calls.Proof``.

    All holds of a client are renewed together.
    """

    #: True, since a service pays for each request, not for each lease.
    is_metered = True

    def __init__(self, calls: LeaseCalls) -> None:
        self._calls = calls

    def late(self) -> Exception:
        return ServiceUnavailable("No answer in time.")

    def renew_here(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        return drive(self.renewing(list(grants), timeout))

    def renewing(self, proofs: Sequence[Proof], timeout: float) -> Steps[Renewals]:
        """Return the steps that renew all ``proofs``, within ``timeout`` seconds."""
        return self._calls.renew_many(proofs, timeout)

    def release(self, term: Term) -> None:
        drive(self._calls.release(term))

    def lost(self, term: Term, reason: str) -> None:
        log.lease_lost(term.row, reason=reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Arguments are those of ``Store.refused``."""
        log.lease_refused(row, verb=verb, reason=reason)

    def proving(self, row: Any) -> AbstractContextManager[None]:
        """Refuse: no transaction spans a service. Raises LeaseError."""
        raise LeaseError(
            f"{row.lease_resource} is kept by a service: no transaction can commit together with "
            "it. Write the fencing token with your data instead (FencedModel)."
        )
