"""Tasks of a service over HTTP, for programs without the database, or without Django."""

from __future__ import annotations

from leasing.client.exceptions import (
    AccessDenied,
    InvalidAnswer,
    RequestRefused,
    ServiceError,
    ServiceUnavailable,
)
from tasks.client.calls import Claimed, RemoteTask
from tasks.client.client import AsyncTaskClient, TaskClient
from tasks.client.context import Context
from tasks.client.handlers import Handlers, handler
from tasks.client.worker import Worker

__all__ = [
    "AccessDenied",
    "AsyncTaskClient",
    "Claimed",
    "Context",
    "Handlers",
    "InvalidAnswer",
    "RemoteTask",
    "RequestRefused",
    "ServiceError",
    "ServiceUnavailable",
    "TaskClient",
    "Worker",
    "handler",
]
