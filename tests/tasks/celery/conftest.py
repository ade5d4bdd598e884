"""Fixtures for the tests of the relay and of Celery."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from tasks.outbox import relay as outbox_relay
from tasks.outbox.relay import Relay
from tasks.outbox.totals import Totals
from tests.tasks.celery.support import FakeBroker


@pytest.fixture(autouse=True)
def _over_celery(settings: Settings) -> None:
    settings.TASK_QUEUE = {
        "QUEUES": ("default", "mail"),
        "CELERY_QUEUES": ("default",),
        "CELERY_WINDOW": 5,
    }


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Totals:
    """Return the counts of the relay of the test."""
    totals = Totals()
    monkeypatch.setattr(outbox_relay, "totals", totals)
    return totals


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def relay(broker: FakeBroker) -> Relay:
    return Relay(broker.send_message, broker)
