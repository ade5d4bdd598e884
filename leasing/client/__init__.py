"""Leases of a service over HTTP, for programs without the database, or without Django."""

from __future__ import annotations

try:
    import httpx  # noqa: F401 - before a module that needs it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "The clients need httpx: pip install 'django-leasing[client]'.", name=error.name
    ) from error

from leasing.client.client import AsyncLeaseClient, LeaseClient
from leasing.client.exceptions import (
    AccessDenied,
    InvalidAnswer,
    RequestRefused,
    ServiceError,
    ServiceUnavailable,
)

__all__ = [
    "AccessDenied",
    "AsyncLeaseClient",
    "InvalidAnswer",
    "LeaseClient",
    "RequestRefused",
    "ServiceError",
    "ServiceUnavailable",
]
