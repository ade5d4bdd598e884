"""Messages of a user's own: stored with what they tell of, published in the order of their key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from leasing.exceptions import InvalidResource, LeaseLost
from leasing.functions import after
from leasing.hold import Hold
from leasing.models import Lease
from tasks.exceptions import NotSerializable
from tasks.models import OutboxMessage
from tasks.outbox import publish
from tasks.outbox.relay import BATCH, BrokerAway, Relay
from tasks.outbox.totals import Totals
from tests.leasing.support import expire
from tests.tasks.celery.support import FakeBroker, away_after

pytestmark = pytest.mark.django_db


def poison(topic: str) -> Any:
    """Return a broker that refuses messages of ``topic``."""

    def before(message: OutboxMessage) -> None:
        if message.topic == topic:
            raise ValueError("too large")

    return before


def let_waiting_be_due() -> None:
    OutboxMessage.objects.waiting().update(due_at=after(timedelta(seconds=-1)))


def test_a_message_is_stored_with_what_the_transaction_changes_or_not_at_all() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        publish("orders.paid", {"order": 1})
        raise ZeroDivisionError
    with transaction.atomic():
        publish("orders.paid", {"order": 2})

    assert [message.payload for message in OutboxMessage.objects.all()] == [{"order": 2}]


@pytest.mark.parametrize(
    ("topic", "payload", "key", "error"),
    [
        ("", {}, "", InvalidResource),
        ("t", {}, " k", InvalidResource),
        ("t", {"n": float("nan")}, "", NotSerializable),
    ],
)
def test_what_cannot_be_published_is_refused_at_once(
    topic: str, payload: Any, key: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        publish(topic, payload, key=key)


def test_messages_are_published_once_and_in_the_order_of_their_key(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    for number in range(BATCH + 3):
        publish(f"t{number}", None, key=f"k{number % 2}")

    while relay.look(term):
        pass
    relay.look(term)

    assert broker.topics == [f"t{number}" for number in range(BATCH + 3)]


def test_a_row_that_becomes_visible_late_is_published_late(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    late, early = publish("late", None, key="a"), publish("early", None, key="b")
    OutboxMessage.objects.filter(pk=late.pk).delete()
    relay.look(term)
    late.save(force_insert=True)  # its transaction commits

    relay.look(term)

    assert late.pk < early.pk
    assert broker.topics == ["early", "late"]


def test_a_message_that_cannot_be_sent_keeps_back_those_of_its_key_alone(
    relay: Relay, term: Hold, broker: FakeBroker, counted: Totals
) -> None:
    for topic, key in [("bad", "k"), ("next", "k"), ("other", "o"), ("none", "")]:
        publish(topic, None, key=key)
    broker.before = poison("bad")

    relay.look(term)
    publish("later", None, key="k")
    relay.look(term)

    assert broker.topics == ["other", "none"]
    assert (counted.sent, counted.refused) == (2, 1)
    bad = OutboxMessage.objects.get(topic="bad")
    assert (bad.failures, bad.last_error) == (1, "ValueError: too large")
    assert list(OutboxMessage.objects.waiting()) == [bad]


def test_one_without_a_key_keeps_nobody_back(relay: Relay, term: Hold, broker: FakeBroker) -> None:
    for topic in ("bad", "good"):
        publish(topic, None)
    broker.before = poison("bad")

    relay.look(term)
    assert broker.topics == ["good"]
    publish("late", None)
    relay.look(term)

    assert broker.topics == ["good", "late"]
    assert OutboxMessage.objects.get(topic="bad").failures == 1  # its pause is not over


def test_it_is_tried_again_and_then_its_key_goes_on_in_order(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    for topic in ("bad", "next"):
        publish(topic, None, key="k")
    broker.before = poison("bad")
    relay.look(term)
    let_waiting_be_due()
    relay.look(term)
    assert OutboxMessage.objects.get(topic="bad").failures == 2
    broker.before = lambda message: None

    OutboxMessage.objects.all().retry()
    relay.look(term)

    assert broker.topics == ["bad", "next"]


def test_one_poisoned_key_with_a_long_backlog_stops_nobody(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    for _ in range(BATCH + 5):
        publish("bad", None, key="k")
    publish("good", None, key="o")
    broker.before = poison("bad")

    while relay.look(term):
        pass

    assert broker.topics == ["good"]


def test_what_a_broker_took_before_it_went_away_is_not_sent_again(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    for topic in ("a", "b"):
        publish(topic, None, key="k")
    broker.before = away_after(1)
    with pytest.raises(BrokerAway):
        relay.look(term)
    broker.before = lambda message: None

    relay.look(term)

    assert broker.topics == ["a", "b"]
    assert OutboxMessage.objects.filter(failures=0).count() == 2


def test_a_relay_that_lost_its_term_marks_nothing_and_its_successor_sends_the_same_id_again(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    sent = publish("a", None)

    def freeze(message: OutboxMessage) -> None:
        expire(Lease.objects.get(resource="leasing_tasks.relay"))
        Lease.objects.acquire("leasing_tasks.relay", holder="another")

    broker.before = freeze
    with pytest.raises(LeaseLost):
        relay.look(term)

    assert OutboxMessage.objects.pending().count() == 1
    expire(Lease.objects.get(resource="leasing_tasks.relay"))
    broker.before = lambda message: None
    with Lease.objects.hold("leasing_tasks.relay") as successors:
        relay.look(successors)
    assert [message.uid for message in broker.messages] == [sent.uid, sent.uid]


def test_a_relay_that_hears_of_the_end_of_its_term_sends_no_more_messages(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    for topic in ("a", "b", "c"):
        publish(topic, None)
    broker.before = lambda message: (
        term._held.mark_lost("a test took it") if message.topic == "b" else None
    )

    with pytest.raises(LeaseLost):
        relay.look(term)

    assert broker.topics == ["a", "b"]


def test_a_relay_that_lost_its_term_puts_nothing_off(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    publish("bad", None)

    def freeze(message: OutboxMessage) -> None:
        expire(Lease.objects.get(resource="leasing_tasks.relay"))
        Lease.objects.acquire("leasing_tasks.relay", holder="another")
        raise ValueError("too large")

    broker.before = freeze
    with pytest.raises(LeaseLost):
        relay.look(term)

    assert OutboxMessage.objects.get().failures == 0


def test_what_was_published_after_all_waits_for_nothing() -> None:
    message = publish("a", None)
    OutboxMessage.objects.put_off(message, ValueError("no memory"))

    OutboxMessage.objects.mark_published([message.pk])

    assert OutboxMessage.objects.get().due_at is None


def test_a_message_is_marked_once() -> None:
    message = publish("a", None)
    OutboxMessage.objects.mark_published([message.pk])
    before = OutboxMessage.objects.get().published_at

    assert OutboxMessage.objects.mark_published([message.pk]) == 0
    OutboxMessage.objects.put_off(message, ValueError("late"))
    assert OutboxMessage.objects.get().published_at == before
    assert OutboxMessage.objects.get().failures == 0


def test_a_discarded_message_lets_its_key_go_on_and_a_published_one_stays(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    there = publish("there", None)
    relay.look(term)
    for topic in ("bad", "next"):
        publish(topic, None, key="k")
    broker.before = poison("bad")
    relay.look(term)

    assert OutboxMessage.objects.filter(topic__in=["there", "bad"]).discard() == 1
    relay.look(term)

    assert broker.topics == ["there", "next"]
    assert OutboxMessage.objects.filter(pk=there.pk).exists()


def test_published_messages_are_deleted_after_their_time(
    relay: Relay, term: Hold, broker: FakeBroker
) -> None:
    old, new, waiting = (publish(topic, None) for topic in ("old", "new", "waiting"))
    rows = OutboxMessage.objects.all()
    rows.filter(pk=old.pk).update(published_at=after(timedelta(days=-8)))
    rows.filter(pk=new.pk).update(published_at=after(timedelta(days=-6)))
    rows.filter(pk=waiting.pk).update(due_at=after(timedelta(days=1)))

    relay.look(term)

    assert set(rows.values_list("topic", flat=True)) == {"new", "waiting"}
    rows.filter(pk=new.pk).update(published_at=after(timedelta(days=-8)))
    relay.look(term)
    assert rows.filter(pk=new.pk).exists()  # not with every look
