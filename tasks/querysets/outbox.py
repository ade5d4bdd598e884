"""Every conditional update on messages of the outbox.

mark_published   not published
put_off          not published
retry            not published
discard          not published
prune            published long enough ago
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from django.db import transaction
from django.db.models import F, Q

from leasing.db.deletion import delete_up_to, unprotected
from leasing.db.dialects import lock
from leasing.db.routing import RoutedQuerySet
from leasing.functions import DbNow, after
from leasing.validation.names import check_name
from tasks.exceptions import NotSerializable
from tasks.notifier import notify_queues
from tasks.payload import dumped_json

if TYPE_CHECKING:
    from tasks.models import OutboxMessage

#: The name by which the relay is woken: no queue has it.
OUTBOX = " outbox"
#: The number of buckets. A constant: those of stored messages follow from it.
BUCKETS = 64
#: The greatest length of a payload's JSON text: a relay reads a hundred messages at a time.
MAX_PAYLOAD = 1_000_000
#: Seconds before a message that could not be sent is tried again, doubled each time.
FIRST_PAUSE, MAX_RETRY_PAUSE = 1.0, 3600.0
#: Characters of an error that are kept.
LONGEST_ERROR = 2000


class OutboxQuerySet(RoutedQuerySet["OutboxMessage"]):
    """Messages of the outbox: ``OutboxMessage.objects``."""

    def publish(self, topic: str, payload: Any, *, key: str = "") -> OutboxMessage:
        """See ``tasks.outbox.publish``."""
        check_name(topic, "topic")
        if key:
            check_name(key, "key")
        if (size := len(dumped_json(payload, "payload"))) > MAX_PAYLOAD:
            raise NotSerializable(
                f"The payload is {size:,} characters of JSON, and a message of the outbox takes "
                f"{MAX_PAYLOAD:,}: store the data, and publish its key."
            )
        rows = self.home()
        bucket = crc32(key.encode()) % BUCKETS if key else random.randrange(BUCKETS)
        message: OutboxMessage = rows.create(topic=topic, payload=payload, key=key, bucket=bucket)
        notify_queues(rows.db, {OUTBOX: 0})
        return message

    def pending(self) -> Self:
        """Messages that are not published."""
        return self.filter(published_at=None)

    def waiting(self) -> Self:
        """Messages that could not be sent, and wait to be tried again."""
        return self.pending().filter(due_at__gt=DbNow())

    def due(self) -> Self:
        """Messages to send now: none of a key one of whose messages waits to be tried again."""
        held_back = self.home().waiting().exclude(key="").values("key")
        due = self.pending().filter(Q(due_at=None) | Q(due_at__lte=DbNow()))
        return due.exclude(key__in=held_back)

    def mark_published(self, keys: Sequence[int]) -> int:
        """Note that the receiver has the messages with ``keys``, within the caller's transaction,
        which proves its lease. Returns how many were not published before."""
        rows = self.home().filter(pk__in=keys).pending()
        list(lock(rows.order_by("pk")).values_list("pk"))
        return rows.update(published_at=DbNow(), due_at=None)

    def put_off(self, message: OutboxMessage, error: BaseException) -> None:
        """Note that ``message`` could not be sent, and when it is tried again."""
        pause = min(MAX_RETRY_PAUSE, FIRST_PAUSE * 2.0 ** min(message.failures, 20))
        text = f"{type(error).__name__}: {error}".replace("\0", "\\0")[:LONGEST_ERROR]
        self.home().filter(pk=message.pk).pending().update(
            failures=F("failures") + 1, last_error=text, due_at=after(timedelta(seconds=pause))
        )

    def retry(self) -> int:
        """Make those of these messages that wait for their next try due now. Returns how many."""
        rows = self.home()
        changed = rows.waiting().update(due_at=None)
        notify_queues(rows.db, {OUTBOX: 0})
        return changed

    def discard(self) -> int:
        """Delete those of these messages that are not published: they never will be. Returns how
        many."""
        rows = self.home().pending()
        with transaction.atomic(using=rows.db):
            found = lock(unprotected(rows).order_by("pk"))
            keys = list(found.values_list("pk", flat=True))
            deleted, _ = rows.filter(pk__in=keys).delete()
        return deleted

    def prune(self, age: float | timedelta, limit: int = 500) -> int:
        """Delete up to ``limit`` messages that were published longer than ``age`` (seconds) ago.
        Returns how many; call again while it is ``limit``."""
        kept = age if isinstance(age, timedelta) else timedelta(seconds=age)
        rows = self.home()
        old = rows.filter(published_at__lt=after(-kept))
        return delete_up_to(
            unprotected(old).only("pk").order_by("published_at", "pk"),
            limit,
            lambda keys: rows.filter(pk__in=keys).delete()[0],
        )
