"""The relay: publishes stored tasks and messages to a broker, one process of many at a time.

    tasks      it marks the first ready tasks as published, with a proof of its term, and then sends
               their keys. So no two relays send for one row. If a relay dies in between, its unsent
               messages are sent again after CELERY_PATIENCE, as if the broker had lost them
    outbox     it sends messages in the order of their keys, and marks those that the broker has
               accepted, with a proof of its term: see ``tasks.outbox``

It holds the lease "leasing_tasks.relay" while it sends, checks it before each message, and stops at
once after a loss. A relay that was suspended has lost its lease; only the message that it was
sending may be sent twice.

While the broker does not answer, the relay waits with growing pauses: the rows stay as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Final, Protocol

from django.db import Error

from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.leader import Leader
from leasing.runtime.clock import clock
from leasing.runtime.services import Service
from tasks.conf import task_settings
from tasks.log import log
from tasks.models import OutboxMessage, Task
from tasks.notifier import limiter
from tasks.outbox import RELAY
from tasks.outbox.totals import totals
from tasks.poller import Poller
from tasks.querysets.outbox import OUTBOX
from tasks.runtime.service_threads import ServiceThreads
from tasks.runtime.tracepoints import Send, points

#: Messages that one transaction marks.
BATCH: Final = 100
#: Seconds until the next pass while more tasks are ready than may be at the broker.
NEXT_BATCH_AFTER: Final = 0.1
#: Published messages that are deleted after a pass with little to do.
PRUNED: Final = 500
#: Seconds until the next deletion after all were deleted.
PRUNE_EVERY: Final = 60.0


class BrokerAway(Exception):
    """The broker does not answer, or takes nothing."""


class QueueRefused(BrokerAway):
    """It answers, and takes nothing for one queue. It may for others."""


class Broker(Protocol):
    """The interface of a broker that a relay uses."""

    def send_task(self, key: int, queue: str) -> None:
        """Tell the workers of ``queue`` of the task with this ``key``. Raises BrokerAway,
        QueueRefused."""

    def send_message(self, message: OutboxMessage) -> None:
        """Publish ``message``. Raises BrokerAway; any other error is the message's own."""

    def waiting(self, queue: str) -> int | None:
        """Return the number of messages of ``queue`` that no worker has taken; None where it is
        unknown. Raises BrokerAway."""

    def close(self) -> None:
        """Hang up. Raises nothing; what is sent next connects again."""


class Relay:
    """Publishes to a broker while it holds the lease.

    Args:
        broker: The broker.
        ttl: Seconds until the deadline of its lease; that of every lease by default.
        name: Its name as a holder; that of this process by default.
    """

    def __init__(self, broker: Broker, *, ttl: float | None = None, name: str | None = None):
        self.broker = broker
        self.leader = Leader(RELAY, ttl=ttl, holder=name)
        self.stopping = threading.Event()
        self._prune_at = 0.0
        queues = [*task_settings.CELERY_QUEUES, OUTBOX]
        self.poller = Poller(queues, self.stopping, lambda key: None)

    def run(self, threads: ServiceThreads) -> None:
        """Publish, or wait for the lease, until ``stop`` is called. ``threads`` end with it."""
        self.poller.listen(threads)
        try:
            with limiter.heard_by(self.poller.hear):
                for term in self.leader.terms(self.stopping):
                    log.relay_leads(holder=term.holder)
                    self._lead(term)
        finally:
            self.broker.close()

    def stop(self) -> None:
        """Publish nothing more."""
        self.stopping.set()
        self.poller.wake()

    def _lead(self, term: Hold) -> None:
        away = (Error, BrokerAway)
        publishing = Service(
            lambda: self._publish(term), log.relay_failed, expected=away, survives=away
        )
        try:
            while term.valid and not self.stopping.is_set():
                self.poller.begin_look()
                pause = publishing.step()
                # What else wakes it is no reason to try sooner.
                wait = self.stopping.wait if publishing.is_failing else self.poller.wait
                wait(pause)
        except LeaseLost as loss:
            log.relay_lost(reason=loss.reason)

    def _publish(self, term: Hold) -> float:
        try:
            has_more = self.look(term)
        except (Error, BrokerAway):
            totals.failures += 1
            raise
        totals.succeeded_at = time.time()
        return NEXT_BATCH_AFTER if has_more else self.poller.pause()

    # One look

    def look(self, term: Hold) -> bool:
        """Publish what there is to publish. Whether more waits than may be at the broker.

        Raises LeaseLost (another publishes), BrokerAway, Error (of the database).
        """
        more, refused = False, None
        for queue in task_settings.CELERY_QUEUES:
            try:
                more = self._publish_tasks(term, queue) or more
            except QueueRefused as error:  # which is no reason to keep back all others
                refused = error
        more = self._publish_messages(term) or more
        if refused is not None:
            raise refused
        if not more:
            self._prune()
        return more

    def _publish_tasks(self, term: Hold, queue: str) -> bool:
        size = task_settings.CELERY_WINDOW
        window = Task.objects.window(queue, size, task_settings.CELERY_PATIENCE)
        keys, late = window.keys, window.late
        if late:
            # While the broker still has messages, these may be among them.
            waiting = self.broker.waiting(queue) or 0
            late = late[: max(0, size - waiting)]
        keys = [*late, *keys]
        for start in range(0, len(keys), BATCH):
            self._publish_batch(term, queue, keys[start : start + BATCH], set(late))
        return window.is_full

    def _publish_batch(
        self, term: Hold, queue: str, keys: Sequence[int], late: Container[int]
    ) -> None:
        with term.still_mine():
            marked = Task.objects.mark_published(keys, task_settings.CELERY_PATIENCE)
        send: Send = self.broker.send_task
        if points.tracer is not None:
            send = points.tracer.publishing(send, marked)
        sent = 0
        try:
            for key in marked:
                term.ensure()
                send(key, queue)
                sent += 1
                totals.published[queue] += 1
                totals.again[queue] += key in late
        finally:
            if sent < len(marked):
                with suppress(Error):  # they are late then
                    Task.objects.unpublish(marked[sent:])

    def _publish_messages(self, term: Hold) -> bool:
        messages = OutboxMessage.objects.next(BATCH)
        sent: list[int] = []
        held: set[str] = set()
        try:
            for message in messages:
                if message.key and message.key in held:
                    continue
                term.ensure()
                try:
                    self.broker.send_message(message)
                except (BrokerAway, Error):
                    raise
                except Exception as error:
                    held.add(message.key)
                    totals.refused += 1
                    log.message_failed(message_id=message.pk, topic=message.topic, error=error)
                    with term.still_mine():
                        OutboxMessage.objects.put_off(message, error)
                else:
                    sent.append(message.pk)
                    totals.sent += 1
        finally:
            if sent:
                with term.still_mine():
                    OutboxMessage.objects.mark_published(sent)
        return len(messages) == BATCH

    def _prune(self) -> None:
        age = task_settings.OUTBOX_RETENTION
        if age is None or clock() < self._prune_at:
            return
        if OutboxMessage.objects.prune(age, PRUNED) < PRUNED:
            self._prune_at = clock() + PRUNE_EVERY
