"""The store of running tasks of a service: their leases are renewed together, by heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

from leasing.client.calls import LeaseCalls, Proof
from leasing.client.store import ServiceStore
from leasing.holding.term import Term
from leasing.runtime.aio import Steps
from leasing.store import Renewals
from tasks.client.calls import TaskCalls


class TaskStore(ServiceStore):
    """Renews tasks for the keeper. They are ended by verbs of their own, not by a release."""

    def __init__(self, calls: TaskCalls) -> None:
        super().__init__(LeaseCalls(calls.transport))
        self._tasks = calls

    def renewing(self, proofs: Sequence[Proof], timeout: float) -> Steps[Renewals]:
        return self._tasks.heartbeat_many(proofs, timeout)

    def release(self, term: Term) -> None:
        """Nothing: the worker gives the task back."""

    def lost(self, term: Term, reason: str) -> None:
        """Nothing: the worker logs it."""
