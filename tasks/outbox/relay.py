"""The relay: publishes stored messages, and tasks for Celery workers. Any number may run.

    outbox     a message is in one of 64 buckets, by its key. A relay claims the leases of a few
               buckets that have messages to send, sends those of each in the order of their ids,
               marks them with a proof of that lease, and releases it. So the messages of a key have
               one publisher at a time: see ``tasks.outbox``
    tasks      it claims one lease for all queues, marks the first ready tasks as published, with a
               proof of that lease, and then sends their keys. If it dies in between, its unsent
               messages are sent again after CELERY_PATIENCE, as if the broker had lost them

No relay knows of another. The leases of one that died are free after their ttl. One that was
suspended has lost its leases: only the message that it was sending may be sent twice, and what it
does not prove is not marked.

A message that cannot be sent waits with growing pauses, and those of its key with it. A publisher
that raises BrokerAway says that no message can be sent: the rows stay as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Final, Protocol

from django.db import Error, connections
from django.db.models import Case, Exists, F, OuterRef, Q, SmallIntegerField, When
from django.db.models.functions import Cast, Right

from leasing.exceptions import LeaseLost
from leasing.holding import Term
from leasing.holding.claim import Claim
from leasing.models import Lease
from leasing.models.lease import LeaseQuerySet
from leasing.runtime.clock import clock
from leasing.runtime.events import during, happened
from leasing.runtime.services import Service
from leasing.validation.names import default_holder
from leasing.validation.terms import Terms
from tasks.conf import task_settings
from tasks.log import log
from tasks.models import OutboxMessage, Task
from tasks.notifier import limiter
from tasks.outbox import BUCKET, RELAY, bucket_lease
from tasks.outbox.totals import totals
from tasks.querysets.outbox import BUCKETS, OUTBOX
from tasks.runtime.service_threads import ServiceThreads
from tasks.worker.poller import Poller

#: The leases of relays.
NAMES: Final = (RELAY, *map(bucket_lease, range(BUCKETS)))
#: Messages that one transaction marks.
BATCH: Final = 100
#: Buckets that are claimed at a time.
CLAIMED: Final = 4
#: Seconds after which a relay marks what it has sent, though more of the batch is to be sent: so
#: much is repeated at most after a kill.
MARK_AFTER: Final = 5.0
#: Seconds that a publisher may take for one message.
PATIENCE: Final = 60.0
#: Seconds until the next pass while more tasks are ready than may be at the broker.
NEXT_BATCH_AFTER: Final = 0.1
#: Seconds between looks for missing leases while there are messages to send.
MAKE_EVERY: Final = 60.0
#: Published messages that are deleted after a pass with little to do.
PRUNED: Final = 500
#: Seconds until the next deletion after all were deleted.
PRUNE_EVERY: Final = 60.0

#: Hands one message to its receiver: returns once that has it, and raises if it has not.
Publisher = Callable[[OutboxMessage], object]


class BrokerAway(Exception):
    """The broker does not answer, or takes nothing."""


class QueueRefused(BrokerAway):
    """It answers, and takes nothing for one queue. It may for others."""


class Broker(Protocol):
    """The interface of the broker of tasks that a relay uses."""

    def send_task(self, key: int, queue: str) -> None:
        """Tell the workers of ``queue`` of the task with this ``key``. Raises BrokerAway,
        QueueRefused."""

    def waiting(self, queue: str) -> int | None:
        """Return the number of messages of ``queue`` that no worker has taken; None where it is
        unknown. Raises BrokerAway."""

    def close(self) -> None:
        """Hang up. Raises nothing; what is sent next connects again."""


class _Leases(LeaseQuerySet):
    """The leases of relays. Ledger, log and signals leave out their terms: there are some for each
    burst of messages."""

    keeps_events = is_told = False


class Delivery:
    """Calls ``publish`` with ``messages`` of one bucket in their order, on a thread of its own: a
    call that does not return is given up, and its thread left behind. After an error no later
    message of that key is sent. Before each message ``goes_on`` is asked."""

    def __init__(
        self,
        publish: Publisher,
        messages: Sequence[OutboxMessage],
        goes_on: Callable[[], bool],
    ) -> None:
        #: The tried messages in order, each with its error; None for one that was sent.
        self.tried: list[tuple[OutboxMessage, BaseException | None]] = []
        self.away: BrokerAway | None = None
        self._publish, self._messages, self._goes_on = publish, messages, goes_on
        self._current, self._began_at = messages[0], clock()
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def wait(self, patience: float) -> None:
        """Wait for the end, or until one call has taken ``patience`` seconds."""
        while self._thread.is_alive():
            left = self._began_at + patience - clock()
            if left <= 0:
                self._is_given_up = True
                error = TimeoutError(f"the publisher has not returned after {patience:g} s")
                self.tried.append((self._current, error))
                return
            self._thread.join(left)

    def _run(self) -> None:
        held_back = set[str]()
        try:
            for message in self._messages:
                if message.key and message.key in held_back:
                    continue
                if self._is_given_up or not self._goes_on():
                    return
                self._began_at, self._current = clock(), message
                error: BaseException | None = None
                try:
                    self._publish(message)
                except BrokerAway as away:
                    self.away = away
                    return
                except BaseException as raised:  # sys.exit() too: it would end this thread alone
                    error = raised
                    held_back.add(message.key)
                self.tried.append((message, error))
        finally:
            connections.close_all()


class Relay:
    """Publishes under leases that it claims.

    Args:
        publish: The publisher of the outbox's messages.
        broker: The broker of tasks; None if CELERY_QUEUES is empty.
        ttl: Seconds after the death of a relay until others take its buckets; that of every lease
            by default.
        name: Its name as a holder; that of this process by default.
        patience: Seconds that ``publish`` may take for one message.

    Raises InvalidResource (the name), InvalidTTL.
    """

    def __init__(
        self,
        publish: Publisher,
        broker: Broker | None = None,
        *,
        ttl: float | None = None,
        name: str | None = None,
        patience: float = PATIENCE,
    ):
        Terms.check(ttl=ttl, holder=name)
        self.publish, self.broker = publish, broker
        self.ttl, self.name, self.patience = ttl, name or default_holder(), patience
        self.stopping = threading.Event()
        self._make_at = self._prune_at = 0.0
        queues = [*task_settings.CELERY_QUEUES, OUTBOX]
        self.poller = Poller(queues, self.stopping, lambda key: None)

    def run(self, threads: ServiceThreads) -> None:
        """Publish until ``stop`` is called. ``threads`` end with it."""
        self.poller.listen(threads)
        away = (Error, BrokerAway)
        publishing = Service(self._step, log.relay_failed, expected=away, survives=away)
        try:
            with limiter.heard_by(self.poller.hear):
                while not self.stopping.is_set():
                    self.poller.begin_look()
                    pause = publishing.step()
                    # What else wakes it is no reason to try sooner.
                    wait = self.stopping.wait if publishing.is_failing else self.poller.wait
                    wait(pause)
        finally:
            if self.broker is not None:
                self.broker.close()

    def stop(self) -> None:
        """Publish nothing more."""
        self.stopping.set()
        self.poller.wake()

    def _step(self) -> float:
        try:
            pause = self.look()
        except LeaseLost as loss:
            log.relay_lost(reason=loss.reason)
            return NEXT_BATCH_AFTER
        except (Error, BrokerAway):
            totals.failures += 1
            raise
        totals.succeeded_at = time.time()
        return self.poller.pause() if pause is None else pause

    # One look

    def look(self) -> float | None:
        """Publish some of what there is to publish. Returns the seconds until there is more; None
        if that is not known.

        Raises LeaseLost (others may publish it), BrokerAway, Error (of the database).
        """
        more, refused = False, None
        for queue in task_settings.CELERY_QUEUES:
            try:
                more = self._publish_tasks(queue) or more
            except QueueRefused as error:  # which is no reason to keep back all others
                refused = error
        is_busy = self._publish_messages()
        # At times also while it is: the messages of a bucket without its lease would wait.
        if not is_busy or clock() >= self._make_at:
            self._make_at = clock() + MAKE_EVERY
            is_busy = self._make_leases() or is_busy
        if is_busy:
            return 0.0
        if refused is not None:
            raise refused
        if more:
            return NEXT_BATCH_AFTER
        self._prune()
        return None

    def _make_leases(self) -> bool:
        """Make the leases that are not there: none was made yet, or they were pruned after a time
        without messages. Returns True if any was."""
        leases = Lease.objects.home()
        if leases.filter(resource__in=NAMES).count() == len(NAMES):
            return False
        leases.bulk_create([Lease(resource=name) for name in NAMES], ignore_conflicts=True)
        return True

    def _claim(self, free: Q | Exists, limit: int) -> Claim[Lease]:
        number = Cast(Right("resource", 2), SmallIntegerField())
        leases = (
            _Leases(Lease).home().alias(bucket=Case(When(resource__startswith=BUCKET, then=number)))
        )
        # By their names, so that not all leases of the site are read.
        leases = leases.filter(resource__in=NAMES)
        # The longest free first, so that a bucket that is always full leaves no other behind.
        waiting = leases.filter(free).order_by(F("released_at").asc(nulls_first=True))
        claimed: Claim[Lease] = waiting.claim(limit, holder=self.name, ttl=self.ttl)
        return claimed

    # Tasks

    def _publish_tasks(self, queue: str) -> bool:
        broker = self.broker
        if broker is None:
            return False
        size = task_settings.CELERY_WINDOW
        window = Task.objects.window(queue, size, task_settings.CELERY_PATIENCE)
        keys, late = window.keys, window.late
        if late:
            # While the broker still has messages, these may be among them.
            waiting = broker.waiting(queue) or 0
            late = late[: max(0, size - waiting)]
        keys = [*late, *keys]
        if keys:
            with self._claim(Q(resource=RELAY), 1) as claimed:
                for term in claimed.holds:  # none: another relay publishes them
                    for start in range(0, len(keys), BATCH):
                        batch = keys[start : start + BATCH]
                        self._publish_batch(term, broker.send_task, queue, batch, set(late))
        return window.is_full

    def _publish_batch(
        self,
        term: Term,
        send: Callable[[int, str], object],
        queue: str,
        keys: Sequence[int],
        late: Container[int],
    ) -> None:
        with term.still_mine():
            marked = Task.objects.mark_published(keys, task_settings.CELERY_PATIENCE)
        happened("tasks.publishing", marked)
        sent = 0
        try:
            for key in marked:
                term.ensure()
                with during("task.publish", key, queue):
                    send(key, queue)
                sent += 1
                totals.published[queue] += 1
                totals.again[queue] += key in late
        finally:
            if sent < len(marked):
                with suppress(Error):  # they are late then
                    Task.objects.unpublish(marked[sent:])

    # Messages

    def _publish_messages(self) -> bool:
        """Publish a batch of each of some buckets. Returns True if there may be more."""
        due = OutboxMessage.objects.due().filter(bucket=OuterRef("bucket"))
        with self._claim(Exists(due), CLAIMED) as claimed:
            for lease, term in zip(claimed, claimed.holds, strict=True):
                self._publish_bucket(term, int(lease.resource.removeprefix(BUCKET)))
        return bool(claimed)

    def _publish_bucket(self, term: Term, bucket: int) -> None:
        due = OutboxMessage.objects.due().filter(bucket=bucket).order_by("pk")
        messages = list(due[:BATCH])
        if not messages:
            return
        until = clock() + MARK_AFTER
        delivery = Delivery(
            self.publish,
            messages,
            lambda: term.valid and clock() < until and not self.stopping.is_set(),
        )
        delivery.wait(self.patience)
        tried = list(delivery.tried)
        sent = [message.pk for message, error in tried if error is None]
        totals.sent += len(sent)
        totals.refused += len(tried) - len(sent)
        with term.still_mine():
            OutboxMessage.objects.mark_published(sent)
            for message, error in tried:
                if error is not None:
                    OutboxMessage.objects.put_off(message, error)
                    log.message_failed(message_id=message.pk, topic=message.topic, error=error)
        if delivery.away is not None:
            raise delivery.away

    def _prune(self) -> None:
        age = task_settings.OUTBOX_RETENTION
        if age is None or clock() < self._prune_at:
            return
        if OutboxMessage.objects.prune(age, PRUNED) < PRUNED:
            self._prune_at = clock() + PRUNE_EVERY
