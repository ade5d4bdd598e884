"""Fixtures for the tests of the relay and of Celery."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from tasks.outbox.relay import Relay
from tests.tasks.celery.support import FakeBroker
from tests.tasks.outbox.conftest import broker, counted

__all__ = ["broker", "counted"]


@pytest.fixture(autouse=True)
def _over_celery(settings: Settings) -> None:
    settings.TASK_QUEUE = {
        "QUEUES": ("default", "mail"),
        "CELERY_QUEUES": ("default",),
        "CELERY_WINDOW": 5,
    }


@pytest.fixture
def relay(broker: FakeBroker) -> Relay:
    return Relay(broker.send_message, broker)
