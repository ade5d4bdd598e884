"""Fixtures for the tests of the outbox: a relay, and the receiver of what it publishes."""

from __future__ import annotations

import pytest

from tasks.outbox import relay as outbox_relay
from tasks.outbox.relay import Relay
from tasks.outbox.totals import Totals
from tests.tasks.celery.support import FakeBroker


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
    return Relay(broker.send_message)
