"""Tasks that the relay publishes, and when again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pytest_django import Settings

from leasing.exceptions import LeaseLost
from leasing.functions import after
from leasing.models import Lease
from leasing.testing import manual_keeper
from tasks.models import Queue, Task
from tasks.outbox import RELAY, publish
from tasks.outbox.relay import BATCH, NEXT_BATCH_AFTER, BrokerAway, QueueRefused, Relay
from tasks.outbox.totals import Totals
from tasks.querysets import relay as verbs
from tests.tasks.celery.support import (
    FakeBroker,
    age,
    away_after,
    enqueue,
    published,
)
from tests.tasks.support import grant_to

pytestmark = pytest.mark.django_db


def test_a_ready_task_is_published_once(relay: Relay, broker: FakeBroker) -> None:
    keys = enqueue(3)

    published(relay)
    published(relay)

    assert broker.tasks == keys


def test_what_somebody_else_has_locked_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """To update it would be to wait for it."""
    free, busy = enqueue(2)
    monkeypatch.setattr(verbs, "lock", lambda rows, **how: rows.exclude(pk=busy))

    assert Task.objects.mark_published([busy, free], 60) == [free]

    assert Task.objects.get(pk=busy).published_at is None


def test_higher_priority_is_published_first(relay: Relay, broker: FakeBroker) -> None:
    low, high = enqueue(priority=0), enqueue(priority=1)

    published(relay)

    assert broker.tasks == [*high, *low]


def test_a_task_that_was_put_off_after_it_was_published_is_published_when_it_is_due(
    relay: Relay, broker: FakeBroker
) -> None:
    (key,) = enqueue()
    published(relay)
    # Its message finds it not due, and is dropped.
    row = Task.objects.filter(pk=key)
    row.update(published_at=after(timedelta(seconds=-2)), scheduled_at=after(timedelta(seconds=-1)))

    published(relay)

    assert broker.tasks == [key, key]


def test_a_task_that_moves_to_a_queue_over_celery_is_published_there(
    relay: Relay, broker: FakeBroker
) -> None:
    (key,) = enqueue(queue="mail")
    Task.objects.filter(pk=key).update(published_at=after(timedelta(0)))

    Task.objects.filter(pk=key).reschedule(queue="default")
    published(relay)

    assert broker.tasks == [key]


def test_tasks_of_a_paused_queue_wait_until_it_is_resumed(relay: Relay, broker: FakeBroker) -> None:
    keys = enqueue()
    Queue.objects.pause("default")
    published(relay)
    assert broker.taken() == []

    Queue.objects.resume("default")
    published(relay)

    assert broker.taken() == keys


# How many


def test_no_more_than_a_window_is_at_the_broker(relay: Relay, broker: FakeBroker) -> None:
    keys = enqueue(8)

    assert published(relay) == NEXT_BATCH_AFTER
    assert broker.taken() == keys[:5]
    grant_to(Task.objects.get(pk=keys[0]), "ann")
    published(relay)

    assert broker.taken() == keys[5:6]


def test_of_a_key_no_more_are_published_than_can_run(relay: Relay, broker: FakeBroker) -> None:
    keys = enqueue(3, concurrency_key="k", concurrency_limit=2)
    published(relay)
    assert broker.taken() == keys[:2]

    first = Task.objects.take_one(keys[0], "ann", queue="default")
    assert first is not None
    published(relay)
    assert broker.taken() == []  # it runs
    Task.objects.complete(first.task)
    published(relay)

    assert broker.taken() == [keys[2]]


def test_a_backlog_behind_one_key_stands_in_nobodys_way(relay: Relay, broker: FakeBroker) -> None:
    first, *_ = enqueue(20, concurrency_key="k", concurrency_limit=1)
    others = enqueue(2)

    published(relay)

    assert broker.taken() == [first, *others]
    published(relay)
    assert broker.taken() == []


# What was lost


def test_a_message_that_the_broker_lost_is_sent_again_after_patience(
    relay: Relay, broker: FakeBroker, counted: Totals
) -> None:
    keys = enqueue(2)
    published(relay)
    age(keys, 61)

    published(relay)
    published(relay)

    assert broker.tasks == keys + keys
    assert (counted.published, counted.again) == ({"default": 4}, {"default": 2})


def test_late_messages_that_still_wait_at_the_broker_are_not_sent_again(
    relay: Relay, broker: FakeBroker
) -> None:
    keys = enqueue(2)
    published(relay)
    age(keys, 61)
    broker.count = 5

    published(relay)

    assert broker.tasks == keys


def test_what_a_broker_did_not_take_is_published_by_the_next_look(
    relay: Relay, broker: FakeBroker
) -> None:
    keys = enqueue(3)
    broker.before = away_after(1)
    with pytest.raises(BrokerAway):
        published(relay)
    broker.before = lambda sent: None

    published(relay)

    assert broker.tasks == keys


def test_a_queue_that_the_broker_refuses_keeps_back_no_other(
    relay: Relay, broker: FakeBroker, settings: Settings
) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "CELERY_QUEUES": ("default", "mail")}
    bad, good = enqueue(), enqueue(queue="mail")
    publish("orders.paid", None)

    def refuse(sent: object) -> None:
        if sent in bad:
            raise QueueRefused("declared otherwise")

    broker.before = refuse
    with pytest.raises(QueueRefused):
        published(relay)

    assert broker.tasks == good and broker.topics == ["orders.paid"]
    assert list(Task.objects.unpublished().values_list("pk", flat=True)) == bad


def test_a_message_whose_task_cannot_be_claimed_lets_the_relay_decide_anew() -> None:
    ready, running = enqueue(2)
    Task.objects.filter(pk__in=[ready, running]).update(published_at=after(timedelta(0)))
    grant_to(Task.objects.get(pk=running), "ann")

    assert Task.objects.unpublish([ready, running]) == 1
    assert not Task.objects.filter(published_at=None).exclude(pk=ready).exists()


# Under one lease


def test_a_relay_that_lost_its_lease_marks_and_sends_nothing_more(
    relay: Relay, broker: FakeBroker, settings: Settings
) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "CELERY_WINDOW": BATCH + 2}
    keys = enqueue(BATCH + 2)

    with manual_keeper() as clocks:
        broker.before = lambda key: clocks.suspend(60) if key == keys[BATCH - 1] else None
        with pytest.raises(LeaseLost):
            published(relay)

    assert broker.tasks == keys[:BATCH]
    assert list(Task.objects.unpublished().values_list("pk", flat=True)) == keys[BATCH:]


def test_a_relay_that_hears_of_the_loss_of_its_lease_stops_in_the_midst_of_a_batch(
    relay: Relay, broker: FakeBroker
) -> None:
    keys = enqueue(3)

    with manual_keeper() as clocks:
        broker.before = lambda key: clocks.suspend(60) if key == keys[1] else None
        with pytest.raises(LeaseLost):
            published(relay)

    assert broker.tasks == keys[:2]
    assert list(Task.objects.filter(published_at=None).values_list("pk", flat=True)) == keys[2:]


def test_what_another_relay_publishes_is_left_to_it(relay: Relay, broker: FakeBroker) -> None:
    other = Lease.objects.acquire(RELAY, holder="another")
    keys = enqueue(2)

    published(relay)
    assert broker.tasks == []
    other.release()
    published(relay)

    assert broker.tasks == keys


def test_only_what_still_lacks_a_message_is_marked() -> None:
    fresh, published, running, later, late = enqueue(5)
    rows = Task.objects.all()
    rows.filter(pk=published).update(published_at=after(timedelta(0)))
    rows.filter(pk=later).update(scheduled_at=after(timedelta(hours=1)))
    grant_to(rows.get(pk=running), "ann")
    age([late], 61)

    marked = rows.mark_published([late, later, running, published, fresh], 60)

    assert marked == [late, fresh]
    assert rows.filter(pk__in=marked, published_at__gt=after(timedelta(seconds=-5))).count() == 2
    assert rows.get(pk=running).published_at is None
