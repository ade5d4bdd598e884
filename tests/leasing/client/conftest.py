"""Fixtures for the tests of the client of leases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasing.client import LeaseClient
from tests.remote import Service, service

__all__ = ["service"]


@pytest.fixture
def leases(service: Service) -> Iterator[LeaseClient]:
    """A client of the service, over a network that may fail."""
    with LeaseClient(**service.options) as client:
        yield client
