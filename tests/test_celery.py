"""Celery workers, a relay and a plain worker together, with brokers that restart and processes that
are killed. ``make celery`` does the same with 10,000 tasks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tasks.models import Worker
from tests.brokers import Broker
from tests.celery_soak.soak import Soak
from tests.conftest import Spawn
from tests.processes import Process, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

SIZE = 300


def soak(spawn: Spawn, broker: Broker, **options: Any) -> Soak:
    def start(args: Sequence[str]) -> Process:
        return spawn(
            args,
            DJANGO_SETTINGS_MODULE="tests.celery_settings",
            CELERY_BROKER_URL=broker.url,
            LEASING_TTL="3",
            PYTHONWARNINGS="default",  # those of Celery are not ours
        )

    return Soak(start, broker, SIZE, work=0.03, **options)


def test_none_is_lost_and_none_accepted_twice_on_redis_beside_a_plain_worker(
    spawn: Spawn, redis_broker: Broker
) -> None:
    run = soak(spawn, redis_broker, side_by_side=True, patience=100)

    outcome = run.run()

    assert outcome.is_right, str(outcome)
    assert outcome.by_celery > 0 and outcome.by_others > 0, str(outcome)
    assert outcome.kinds >= {"relay kills", "purges", "repeated messages"}, str(outcome)


def test_none_is_lost_and_none_accepted_twice_on_rabbitmq(
    spawn: Spawn, rabbitmq_broker: Broker
) -> None:
    run = soak(spawn, rabbitmq_broker, relay_kills=0, patience=100)

    outcome = run.run()

    assert outcome.is_right, str(outcome)
    assert outcome.kinds >= {"purges", "repeated messages"}, str(outcome)


def test_a_celery_worker_is_seen_among_the_workers_and_signs_off(
    spawn: Spawn, redis_broker: Broker
) -> None:
    run = soak(spawn, redis_broker)
    run._start_one("worker0")
    worker = run.crew["worker0"]

    # Its name is taken before it has its broker, and knows its queues.
    ready = Worker.objects.filter(name="worker0@soak").exclude(queues=[])
    wait_for(ready.exists, timeout=60, process=worker)
    row = Worker.objects.get()
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)

    assert (row.queues, row.slots, row.pid) == (["default"], {"pool": 2}, worker.pid)
    assert Worker.objects.filter(stopped_at=None).count() == 0
