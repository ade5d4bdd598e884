"""Messages of a user's own: stored with what they tell of, published in the order of their key."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, connection, transaction
from django.test.utils import CaptureQueriesContext

from leasing.exceptions import InvalidResource, LeaseLost
from leasing.functions import after, database_now
from leasing.models import Lease, LeaseEvent
from leasing.testing import manual_keeper
from tasks.exceptions import NotSerializable
from tasks.models import OutboxMessage
from tasks.outbox import BUCKET, bucket_lease, publish
from tasks.outbox import relay as outbox_relay
from tasks.outbox.relay import BATCH, MARK_AFTER, BrokerAway, Relay
from tasks.outbox.totals import Totals
from tasks.querysets.outbox import BUCKETS, MAX_PAYLOAD
from tests.limits import Limits
from tests.processes import wait_for
from tests.tasks.celery.support import FakeBroker, away_after, published

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
    relay: Relay, broker: FakeBroker
) -> None:
    for number in range(BATCH + 3):
        publish(f"t{number}", None, key=f"k{number % 2}")

    published(relay)
    published(relay)

    for first in range(2):
        assert broker.topics_of(f"k{first}") == [f"t{n}" for n in range(first, BATCH + 3, 2)]
    assert len(broker.messages) == BATCH + 3


def test_a_row_that_becomes_visible_late_is_published_late(
    relay: Relay, broker: FakeBroker
) -> None:
    late, early = publish("late", None, key="a"), publish("early", None, key="b")
    OutboxMessage.objects.filter(pk=late.pk).delete()
    published(relay)
    late.save(force_insert=True)  # its transaction commits

    published(relay)

    assert late.pk < early.pk
    assert broker.topics == ["early", "late"]


def test_a_message_that_cannot_be_sent_keeps_back_those_of_its_key_alone(
    relay: Relay, broker: FakeBroker, counted: Totals
) -> None:
    for topic, key in [("bad", "k"), ("next", "k"), ("other", "o"), ("none", "")]:
        publish(topic, None, key=key)
    broker.before = poison("bad")

    published(relay)
    publish("later", None, key="k")
    published(relay)

    assert sorted(broker.topics) == ["none", "other"]
    assert (counted.sent, counted.refused) == (2, 1)
    bad = OutboxMessage.objects.get(topic="bad")
    assert (bad.failures, bad.last_error) == (1, "ValueError: too large")
    assert list(OutboxMessage.objects.waiting()) == [bad]


def test_one_without_a_key_keeps_nobody_back(relay: Relay, broker: FakeBroker) -> None:
    for topic in ("bad", "good"):
        publish(topic, None)
    broker.before = poison("bad")

    published(relay)
    assert broker.topics == ["good"]
    publish("late", None)
    published(relay)

    assert broker.topics == ["good", "late"]
    assert OutboxMessage.objects.get(topic="bad").failures == 1  # its pause is not over


def test_it_is_tried_again_and_then_its_key_goes_on_in_order(
    relay: Relay, broker: FakeBroker
) -> None:
    for topic in ("bad", "next"):
        publish(topic, None, key="k")
    broker.before = poison("bad")
    published(relay)
    let_waiting_be_due()
    published(relay)
    assert OutboxMessage.objects.get(topic="bad").failures == 2
    broker.before = lambda message: None

    OutboxMessage.objects.all().retry()
    published(relay)

    assert broker.topics == ["bad", "next"]


def test_one_poisoned_key_with_a_long_backlog_stops_nobody(
    relay: Relay, broker: FakeBroker
) -> None:
    for _ in range(BATCH + 5):
        publish("bad", None, key="k")
    publish("good", None, key="o")
    broker.before = poison("bad")

    published(relay)

    assert broker.topics == ["good"]


def test_what_a_broker_took_before_it_went_away_is_not_sent_again(
    relay: Relay, broker: FakeBroker
) -> None:
    for topic in ("a", "b"):
        publish(topic, None, key="k")
    broker.before = away_after(1)
    with pytest.raises(BrokerAway):
        published(relay)
    broker.before = lambda message: None

    published(relay)

    assert broker.topics == ["a", "b"]
    assert OutboxMessage.objects.filter(failures=0).count() == 2


def test_a_relay_that_lost_its_lease_marks_nothing_and_the_next_sends_the_same_uid_again(
    relay: Relay, broker: FakeBroker
) -> None:
    sent = publish("a", None)
    relay.look()

    with manual_keeper() as clocks:
        broker.before = lambda message: clocks.suspend(60)
        with pytest.raises(LeaseLost):
            published(relay)
        assert OutboxMessage.objects.pending().count() == 1
        broker.before = lambda message: None
        published(Relay(broker.send_message, name="another"))

    assert [message.uid for message in broker.messages] == [sent.uid, sent.uid]
    assert not OutboxMessage.objects.pending().exists()


def test_a_relay_that_lost_its_lease_sends_no_more_messages(
    relay: Relay, broker: FakeBroker
) -> None:
    for topic in ("a", "b", "c"):
        publish(topic, None, key="k")
    relay.look()

    with manual_keeper() as clocks:
        broker.before = lambda message: clocks.suspend(60) if message.topic == "b" else None
        with pytest.raises(LeaseLost):
            published(relay)

    assert broker.topics == ["a", "b"]


def test_a_relay_that_lost_its_lease_puts_nothing_off(relay: Relay, broker: FakeBroker) -> None:
    publish("bad", None)
    relay.look()

    def freeze(message: OutboxMessage) -> None:
        clocks.suspend(60)
        raise ValueError("too large")

    broker.before = freeze
    with manual_keeper() as clocks, pytest.raises(LeaseLost):
        published(relay)

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
    relay: Relay, broker: FakeBroker
) -> None:
    there = publish("there", None)
    published(relay)
    for topic in ("bad", "next"):
        publish(topic, None, key="k")
    broker.before = poison("bad")
    published(relay)

    assert OutboxMessage.objects.filter(topic__in=["there", "bad"]).discard() == 1
    published(relay)

    assert broker.topics == ["there", "next"]
    assert OutboxMessage.objects.filter(pk=there.pk).exists()


def test_published_messages_are_deleted_after_their_time(relay: Relay, broker: FakeBroker) -> None:
    old, new, waiting = (publish(topic, None) for topic in ("old", "new", "waiting"))
    rows = OutboxMessage.objects.all()
    rows.filter(pk=old.pk).update(published_at=after(timedelta(days=-8)))
    rows.filter(pk=new.pk).update(published_at=after(timedelta(days=-6)))
    rows.filter(pk=waiting.pk).update(due_at=after(timedelta(days=1)))

    published(relay)

    assert set(rows.values_list("topic", flat=True)) == {"new", "waiting"}
    rows.filter(pk=new.pk).update(published_at=after(timedelta(days=-8)))
    published(relay)
    assert rows.filter(pk=new.pk).exists()  # not with every look


# Buckets and their leases


def test_the_messages_of_a_key_are_in_one_bucket_and_those_without_a_key_in_any() -> None:
    assert {publish("t", None, key="order:17").bucket for _ in range(3)} == {33}
    assert len({publish("t", None).bucket for _ in range(100)}) > 20


def test_leases_that_were_pruned_are_made_again(relay: Relay, broker: FakeBroker) -> None:
    published(relay)
    names = Lease.objects.filter(resource__startswith=BUCKET)
    assert names.count() == BUCKETS
    names.all().delete()
    publish("a", None)

    published(relay)

    assert broker.topics == ["a"]


def test_a_lease_that_was_pruned_is_made_again_while_other_buckets_are_busy(
    relay: Relay, broker: FakeBroker
) -> None:
    relay.look()
    pruned, _ = publish("pruned", None, key="a"), publish("busy", None, key="b")
    Lease.objects.filter(resource=bucket_lease(pruned.bucket)).delete()

    with manual_keeper() as clocks:
        for _ in range(4):
            relay.look()
            publish("busy", None, key="b")
            clocks.suspend(outbox_relay.MAKE_EVERY / 2)

    assert broker.topics.count("busy") == 4
    assert "pruned" in broker.topics


@pytest.mark.usefixtures("on_postgresql")
def test_a_claim_reads_the_leases_of_relays_and_no_others(relay: Relay) -> None:
    """A site may have a million others."""
    relay.look()
    # As many as make PostgreSQL prefer an index.
    Lease.objects.bulk_create([Lease(resource=f"order:{number}") for number in range(9000)])
    publish("a", None)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        with CaptureQueriesContext(connection) as captured:
            relay.look()
        reads = [each["sql"] for each in captured]
        claim = next(sql for sql in reads if "leasing_lease" in sql and '"bucket"' in sql)
        cursor.execute(f"EXPLAIN {claim}")
        plan = "\n".join(map(str, cursor.fetchall()))

    assert "Seq Scan on leasing_lease" not in plan


def test_a_bucket_that_another_relay_has_is_left_to_it(relay: Relay, broker: FakeBroker) -> None:
    mine, others = publish("mine", None, key="a"), publish("others", None, key="b")
    assert mine.bucket != others.bucket
    lease = Lease.objects.acquire(bucket_lease(others.bucket), holder="another")

    published(relay)
    assert broker.topics == ["mine"]
    lease.release()
    published(relay)

    assert broker.topics == ["mine", "others"]


def test_buckets_that_have_waited_longest_are_published_first(
    relay: Relay, broker: FakeBroker, limits: Limits
) -> None:
    """Otherwise one that is always full would leave the others behind."""
    limits(buckets=1)
    relay.look()
    busy, quiet = sorted((publish(each, None, key=each) for each in "ab"), key=lambda m: m.bucket)
    relay.look()
    publish("more", None, key=busy.key)

    relay.look()

    assert broker.topics == [busy.topic, quiet.topic]


def test_what_a_relay_claims_is_not_told_in_the_ledger(relay: Relay, broker: FakeBroker) -> None:
    publish("a", None)

    published(relay)

    assert broker.topics == ["a"]
    assert not LeaseEvent.objects.exists()
    assert not Lease.objects.active().exists()


# Publishers that misbehave


def test_a_call_that_hangs_is_given_up_and_keeps_back_its_key_alone(broker: FakeBroker) -> None:
    relay, goes_on = Relay(broker.send_message, patience=0.2), threading.Event()
    for topic, key in [("hangs", "k"), ("next", "k"), ("other", "o")]:
        publish(topic, None, key=key)
    broker.before = lambda message: message.topic == "hangs" and goes_on.wait(60)

    published(relay)

    assert broker.topics == ["other"]
    hangs = OutboxMessage.objects.get(topic="hangs")
    error = "TimeoutError: the publisher has not returned after 0.2 s"
    assert (hangs.failures, hangs.last_error) == (1, error)
    # Its late answer changes nothing, and the call goes on to no other message.
    goes_on.set()
    wait_for(lambda: "hangs" in broker.topics)
    assert OutboxMessage.objects.pending().count() == 2
    let_waiting_be_due()
    published(relay)
    assert broker.topics_of("k") == ["hangs", "hangs", "next"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), Error("of its own database")])
def test_whatever_a_publisher_raises_is_the_failure_of_its_message(
    relay: Relay, broker: FakeBroker, error: BaseException
) -> None:
    publish("bad", None, key="k")
    publish("good", None, key="o")

    def refuse(message: OutboxMessage) -> None:
        if message.topic == "bad":
            raise error

    broker.before = refuse
    published(relay)

    assert broker.topics == ["good"]
    assert OutboxMessage.objects.get(topic="bad").last_error.startswith(type(error).__name__)


def test_pauses_between_tries_grow_to_an_hour() -> None:
    message = publish("bad", None)
    pauses = []
    for _ in range(14):
        OutboxMessage.objects.put_off(message, ValueError("no"))
        message.refresh_from_db()
        assert message.due_at is not None
        pauses.append(round((message.due_at - database_now("default")).total_seconds()))

    assert pauses == [min(2**n, 3600) for n in range(14)]


def test_a_relay_that_is_stopped_sends_no_further_message(relay: Relay, broker: FakeBroker) -> None:
    for topic in ("a", "b"):
        publish(topic, None, key="k")
    relay.look()
    broker.before = lambda message: relay.stop()

    relay.look()

    assert broker.topics == ["a"]
    assert OutboxMessage.objects.pending().get().topic == "b"
    assert not Lease.objects.active().exists()


def test_a_slow_publisher_has_marked_what_it_sent_after_some_seconds(
    relay: Relay, broker: FakeBroker
) -> None:
    """So much is sent again at most if the relay is killed."""
    for topic in ("a", "b", "c"):
        publish(topic, None, key="k")
    relay.look()

    with manual_keeper() as clocks:
        broker.before = lambda message: clocks.suspend(MARK_AFTER / 2)
        relay.look()

    assert broker.topics == ["a", "b"]
    assert OutboxMessage.objects.pending().get().topic == "c"


def test_a_message_of_ten_megabytes_is_refused_with_the_way_out() -> None:
    text = "10,000,002 characters of JSON, and a message of the outbox takes 1,000,000"
    with pytest.raises(NotSerializable, match=text):
        publish("files.stored", "x" * 10_000_000)

    assert publish("files.stored", "x" * (MAX_PAYLOAD - 2)).pk
    assert OutboxMessage.objects.count() == 1
