"""Messages of the outbox, as rows of each database say it."""

from __future__ import annotations

from typing import Any

import pytest

from leasing.db.dialects import lock
from tasks.models import OutboxMessage
from tasks.querysets import outbox
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import just_before_the_update

pytestmark = pytest.mark.django_db


def test_a_message_that_was_put_off_is_due_again_at_its_moment(
    database_clock: DatabaseClock,
) -> None:
    database_clock.advance(0.5)
    message = OutboxMessage.objects.publish("orders.paid", {})
    OutboxMessage.objects.put_off(message, ValueError("too large"))

    database_clock.advance(outbox.FIRST_PAUSE - 0.001)
    assert (OutboxMessage.objects.waiting().count(), list(OutboxMessage.objects.due())) == (1, [])

    database_clock.advance(0.001)
    assert OutboxMessage.objects.waiting().count() == 0
    assert list(OutboxMessage.objects.due()) == [message]


def test_messages_are_locked_in_the_order_of_their_keys_before_they_are_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator who discards them locks them so, too: otherwise the two could deadlock."""
    messages = [OutboxMessage.objects.publish("orders.paid", {}) for _ in range(2)]
    steps: list[Any] = []

    def noted(rows: Any) -> Any:
        steps.append(rows.query.order_by)
        return lock(rows)

    monkeypatch.setattr(outbox, "lock", noted)
    with just_before_the_update(lambda: steps.append("update")):
        assert OutboxMessage.objects.mark_published([each.pk for each in messages]) == 2

    assert steps == [("pk",), "update"]
