"""Messages of your own, stored in your transaction and published by the relay.

    with transaction.atomic():
        order.save()
        publish("orders.paid", {"order": order.pk}, key=f"order:{order.pk}")

Guarantees
    stored      with what the transaction changes, or not at all
    published   at least once, by the callable that TASK_QUEUE["OUTBOX_PUBLISHER"] names, or else to
                the exchange TASK_QUEUE["OUTBOX_EXCHANGE"] of Celery's broker; each with a ``uid``
                by which a consumer knows it again
    in order    the messages of one key, one after the other: none is sent before the receiver has
                the one ahead of it. One that cannot be sent keeps back those of its key alone, and
                is tried again after growing pauses, of an hour at most

The order of a key is that of ``id``. Ids are given at ``publish``, not at the commit. So change,
and by that lock, the row that the key stands for before you publish: then they follow the commits.
The relay never reads on from an id; a row that becomes visible late is sent late, and not missed.

Any number of relays (``manage.py run_relay``) publish, each of them other keys at a time. One that
dies, or is frozen, after the receiver got a message and before that is noted leaves it to be sent
again, by another or by itself: a duplicate with the same ``uid``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tasks.models import OutboxMessage

#: The lease of the relay that publishes tasks.
RELAY: Final = "leasing_tasks.relay"
#: The beginning of the names of the leases of buckets.
BUCKET: Final = "leasing_tasks.outbox."


def bucket_lease(bucket: int) -> str:
    """Return the name of the lease under which a relay publishes the messages of ``bucket``."""
    return f"{BUCKET}{bucket:02}"


def publish(topic: str, payload: Any, *, key: str = "") -> OutboxMessage:
    """Store a message, as part of the caller's transaction if there is one.

    Args:
        topic: The kind of the message (1 to 200 printable characters); Celery's routing key.
        payload: Any JSON, of a million characters at most.
        key: Messages of one key are published in their order; those without one in any.

    Raises InvalidResource (the topic, the key), NotSerializable.
    """
    from tasks.models import OutboxMessage

    return OutboxMessage.objects.publish(topic, payload, key=key)
