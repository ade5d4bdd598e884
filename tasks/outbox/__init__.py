"""Messages of your own, stored in your transaction and published by the relay.

    with transaction.atomic():
        order.save()
        publish("orders.paid", {"order": order.pk}, key=f"order:{order.pk}")

Guarantees
    stored      with what the transaction changes, or not at all
    published   at least once, to the exchange TASK_QUEUE["OUTBOX_EXCHANGE"] with the topic as
                routing key; each with an id by which a consumer knows it again
    in order    the messages of one key, one after the other: none is sent before the one ahead of
                it was taken by the broker. One that cannot be sent keeps back those of its key
                alone, and is tried again after growing pauses

The order of a key is that of ``id``. Ids are given at ``publish``, not at the commit. So change,
and by that lock, the row that the key stands for before you publish: then they follow the commits.
The relay never reads on from an id; a row that becomes visible late is sent late, and not missed.

A relay that dies, or is frozen, after the broker took a message and before that is noted leaves it
to be sent again, by its successor or by itself: a duplicate with the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tasks.models import OutboxMessage

#: The lease of the relay that publishes.
RELAY: Final = "leasing_tasks.relay"


def publish(topic: str, payload: Any, *, key: str = "") -> OutboxMessage:
    """Store a message, as part of the caller's transaction if there is one.

    Args:
        topic: The routing key (1 to 200 printable characters).
        payload: Any JSON.
        key: Messages of one key are published in their order; those without one in any.

    Raises InvalidResource (the topic, the key), NotSerializable.
    """
    from tasks.models import OutboxMessage

    return OutboxMessage.objects.publish(topic, payload, key=key)
