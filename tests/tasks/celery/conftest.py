"""Fixtures for the tests of the relay and of Celery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from leasing.hold import Hold
from leasing.models import Lease
from tasks.outbox.relay import RESOURCE, Relay
from tests.tasks.celery.support import FakeBroker


@pytest.fixture(autouse=True)
def _over_celery(settings: Settings) -> None:
    settings.TASK_QUEUE = {
        "QUEUES": ("default", "mail"),
        "CELERY_QUEUES": ("default",),
        "CELERY_WINDOW": 5,
    }


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def relay(broker: FakeBroker) -> Relay:
    return Relay(broker)


@pytest.fixture
def term(db: Any) -> Iterator[Hold]:
    """The term in which the relay of the test publishes."""
    hold = Lease.objects.hold(RESOURCE, ttl=30)
    hold.__enter__()
    yield hold
    hold.leave()
