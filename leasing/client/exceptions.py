"""Exceptions of the clients: what can be wrong with a service, besides a lease or a task.

ServiceError
├── ServiceUnavailable  no answer, or an error of the service; the request may have taken effect
├── InvalidAnswer       the address does not answer as this API does
├── AccessDenied        the token is missing, unknown, expired, or lacks a scope
└── RequestRefused      the service refused the request: see ``status``
"""

from __future__ import annotations

from leasing.exceptions import LeaseError


class ServiceError(Exception):
    """The service did not do what was requested."""

    __reduce__ = LeaseError.__reduce__


class ServiceUnavailable(ServiceError, ConnectionError):
    """The service could not be reached, did not answer in time, or failed; or no token could be
    read for it. The request may have taken effect nevertheless.

    ``is_permanent`` is true if an immediate retry would fail again: the certificate of the service
    is refused, or the service has answered with an error of its own, of this ``status`` (500).
    """

    is_permanent = False
    status: int | None = None


class InvalidAnswer(ServiceError):
    """The answer is not one of this API: another service, another version, or a proxy."""


class AccessDenied(ServiceError):
    """The token is missing, unknown or expired (``status`` 401), or does not permit this (403)."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class RequestRefused(ServiceError):
    """The service refused the request, with the HTTP ``status`` and the reason."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)
