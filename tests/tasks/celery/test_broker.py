"""The relay's broker over a Celery application, and a Celery worker behind it."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections
from kombu import Exchange, Queue
from pytest_django import Settings

from tasks.celery import RUN, connect
from tasks.celery.broker import CeleryBroker, Unroutable
from tasks.models import OutboxMessage, Task
from tasks.outbox import publish
from tasks.outbox.relay import BrokerAway, Relay
from tasks.runtime.service_threads import ServiceThreads
from tests.brokers import Broker, free_ports
from tests.conftest import Spawn
from tests.processes import wait_for
from tests.tasks.celery.support import enqueue

pytestmark = [pytest.mark.slow, pytest.mark.django_db]


def application(url: str, **options: Any) -> Celery:
    app = Celery("tests", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    return app


@pytest.fixture
def app() -> Iterator[Celery]:
    """An application with a broker in memory."""
    app = application("memory://", polling_interval=0.01)
    yield app
    app.close()


@pytest.fixture
def broker(app: Celery) -> Iterator[CeleryBroker]:
    broker = CeleryBroker(app)
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def _abandoned_sockets() -> Iterator[None]:
    """An AMQP client that fails in the midst of its handshake leaves its socket to the collector,
    whose warning is to reach no other test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        gc.freeze()  # or the next test's collection goes through all that earlier tests have left


@pytest.fixture
def broker_at() -> Iterator[Callable[[str], CeleryBroker]]:
    """Makes brokers over the server at an address, and closes them after the test."""
    with ExitStack() as made:

        def make(url: str) -> CeleryBroker:
            app = application(url)
            made.callback(app.close)
            broker = CeleryBroker(app)
            made.callback(broker.close)
            return broker

        yield make


def bind(app: Celery, topic: str) -> Queue:
    """Bind a queue to the messages of ``topic``."""
    queue = Queue(f"of {topic}", Exchange("outbox", type="topic"), routing_key=topic)
    with app.connection_for_write() as connection:
        queue(connection.default_channel).declare()
    return queue


def get(app: Celery, queue: Queue) -> Any:
    with app.connection_for_read() as connection:
        return queue(connection.default_channel).get(no_ack=True)


def test_a_key_waits_in_the_queue_of_its_name_and_carries_nothing_else(
    app: Celery, broker: CeleryBroker
) -> None:
    broker.send_task(17, "test_a_key")

    assert broker.waiting("test_a_key") == 1
    message = get(app, Queue("test_a_key"))
    assert message.headers["task"] == RUN
    assert message.payload[:2] == [[17, "test_a_key"], {}]


def test_a_message_carries_what_a_consumer_knows_it_again_by(
    app: Celery, broker: CeleryBroker
) -> None:
    queue = bind(app, "orders.paid")
    stored = publish("orders.paid", {"order": 1}, key="order:1")

    broker.send_message(stored)

    message = get(app, queue)
    assert message.payload == {"order": 1}
    assert message.properties["message_id"] == str(stored.uid)
    assert message.headers == {
        "id": str(stored.uid),
        "sequence": stored.pk,
        "key": "order:1",
        "created_at": stored.created_at.isoformat(),
    }


def test_a_message_that_no_broker_takes_fails_alone(app: Celery, broker: CeleryBroker) -> None:
    stored = publish("orders.paid", None)
    stored.payload = object()

    with pytest.raises(Exception) as error:
        broker.send_message(stored)

    assert not isinstance(error.value, BrokerAway)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_not_there_is_away(scheme: str) -> None:
    (port,) = free_ports(1)
    broker = CeleryBroker(application(f"{scheme}://127.0.0.1:{port}//"))

    with pytest.raises(BrokerAway):
        broker.send_task(1, "default")
    with pytest.raises(BrokerAway):
        broker.waiting("default")


@pytest.mark.parametrize("path", [None, "project.nothing.app", "nonsense"])
def test_one_that_is_not_there_is_said(settings: Settings, path: str | None) -> None:
    settings.TASK_QUEUE = {"CELERY_APP": path}

    with pytest.raises(ImproperlyConfigured, match="CELERY_APP"):
        CeleryBroker.of_settings()
    with pytest.raises(CommandError, match="CELERY_APP"):
        call_command("run_relay")


def test_a_message_is_acknowledged_after_its_task(app: Celery) -> None:
    connect(app, attend=False)

    task = app.tasks[RUN]
    assert (task.acks_late, task.ignore_result) == (True, True)


@pytest.mark.django_db(transaction=True)
def test_a_worker_behind_the_broker_runs_what_was_enqueued(
    app: Celery, broker: CeleryBroker
) -> None:
    connect(app, attend=False)
    relay = Relay(broker.send_message, broker, ttl=5, name="the relay")

    def publish_until_stopped() -> None:
        threads = ServiceThreads(relay.stopping)
        relay.run(threads)
        threads.stop()
        connections.close_all()

    relaying = threading.Thread(target=publish_until_stopped)
    relaying.start()
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, queues=["default"]):
            enqueue(3)
            wait_for(lambda: Task.objects.succeeded().count() == 3)
    finally:
        relay.stop()
        relaying.join()

    assert set(Task.objects.values_list("attempts", "grants")) == {(1, 1)}


# Real brokers


def test_rabbitmq_confirms_and_says_what_it_can_route_nowhere(
    rabbitmq_broker: Broker, broker_at: Callable[[str], CeleryBroker]
) -> None:
    broker = broker_at(rabbitmq_broker.url)
    app = broker._app
    broker.send_task(1, "test_confirms")
    assert broker.waiting("test_confirms") == 1
    assert broker.waiting("not there") is None
    lost, found = publish("nobody.listens", {}), publish("somebody.listens", {})
    queue = bind(app, "somebody.*")

    with pytest.raises(Unroutable):
        broker.send_message(lost)
    broker.send_message(found)

    assert get(app, queue).properties["message_id"] == str(found.uid)
    rabbitmq_broker.kill()
    with pytest.raises(BrokerAway):
        broker.send_task(2, "test_confirms")
    rabbitmq_broker.start()
    broker.send_task(3, "test_confirms")
    assert broker.waiting("test_confirms") == 2  # what it had confirmed is there


def test_redis_is_found_again_after_a_restart(
    redis_broker: Broker, broker_at: Callable[[str], CeleryBroker]
) -> None:
    broker = broker_at(redis_broker.url)
    broker.send_task(1, "test_redis")

    redis_broker.restart()
    broker.send_task(2, "test_redis")

    assert broker.waiting("test_redis") == 2
    redis_broker.kill()
    with pytest.raises(BrokerAway):
        broker.send_task(3, "test_redis")


def test_two_relays_publish_the_messages_of_a_key_in_their_order(
    spawn: Spawn, redis_broker: Broker, broker_at: Callable[[str], CeleryBroker]
) -> None:
    app = broker_at(redis_broker.url)._app
    queue = bind(app, "counted")
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.celery_settings",
        "CELERY_BROKER_URL": redis_broker.url,
    }
    for n in range(150):
        publish("counted", n, key="k")
    relays = {
        name: spawn(["manage.py", "run_relay", "--ttl", "2", "--name", name], **env)
        for name in ("ann", "bob")
    }

    def published() -> int:
        return OutboxMessage.objects.filter(published_at__isnull=False).count()

    wait_for(lambda: published() == 150, timeout=60)
    relays["ann"].kill()
    relays["ann"].wait()
    for n in range(150, 300):
        publish("counted", n, key="k")
    wait_for(lambda: published() == 300, timeout=60)

    got: list[int] = []
    while (message := get(app, queue)) is not None:
        got.append(message.payload)
    # On a loaded machine a term may end before a batch is marked, which is then sent again.
    assert list(dict.fromkeys(got)) == list(range(300))
