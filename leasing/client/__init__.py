"""Leases of a service over HTTP, for programs without the database, or without Django."""

from __future__ import annotations

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
