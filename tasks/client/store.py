"""The store of running tasks of a service: their leases are renewed together, by heartbeats."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from leasing.client.calls import LeaseCalls
from leasing.client.store import ServiceStore
from leasing.runtime.aio import drive
from leasing.store import Grant, Renewals
from tasks.client.calls import TaskCalls


class TaskStore(ServiceStore):
    """Renews tasks for the keeper. They are ended by verbs of their own, not by a release."""

    def __init__(self, calls: TaskCalls) -> None:
        super().__init__(LeaseCalls(calls.transport))
        self._tasks = calls

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        return drive(self._tasks.heartbeat_many(list(grants), timeout=timeout))

    def release(self, grant: Grant) -> None:
        """Nothing: the worker gives the task back."""

    def lost(self, grant: Grant, reason: str) -> None:
        """Nothing: the worker logs it."""
