"""Fixtures for the tests of the client of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.client import TaskClient
from tests.remote import Service, service

__all__ = ["service"]


@pytest.fixture
def remote(service: Service) -> Iterator[TaskClient]:
    """A client of the service, over a network that may fail."""
    with TaskClient(**service.options) as client:
        yield client
