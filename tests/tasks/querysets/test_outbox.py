"""Messages of the outbox, as rows of each database say it."""

from __future__ import annotations

import pytest

from tasks.models import OutboxMessage
from tasks.querysets import outbox
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import locks_and_writes

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


@pytest.mark.usefixtures("on_postgresql")
def test_messages_are_locked_in_the_order_of_their_keys_before_they_are_marked() -> None:
    """An operator who discards them locks them so, too: otherwise the two could deadlock."""
    messages = [OutboxMessage.objects.publish("orders.paid", {}) for _ in range(2)]

    with locks_and_writes() as steps:
        assert OutboxMessage.objects.mark_published([each.pk for each in messages]) == 2

    assert steps[:2] == ["lock in order", "write"]
