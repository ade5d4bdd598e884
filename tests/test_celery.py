"""A Celery worker among the workers. ``make chaos`` runs tasks through Celery while its brokers
restart and processes are killed."""

from __future__ import annotations

import signal

import pytest

from tasks.models import Worker
from tests.brokers import Broker
from tests.conftest import Spawn
from tests.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WORKER = [
    *("-m", "celery", "-A", "project.celery", "worker", "-Q", "default", "-l", "WARNING"),
    *("-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle", "-n", "worker0@test"),
]


def test_a_celery_worker_is_seen_among_the_workers_and_signs_off(
    spawn: Spawn, redis_broker: Broker
) -> None:
    worker = spawn(
        WORKER,
        DJANGO_SETTINGS_MODULE="tests.celery_settings",
        CELERY_BROKER_URL=redis_broker.url,
        LEASING_TTL="3",
        PYTHONWARNINGS="default",  # those of Celery are not ours
    )

    # Its row is there before it has its broker, and knows its queues.
    ready = Worker.objects.labelled("worker0@test").exclude(queues=[])
    wait_for(ready.exists, timeout=60, process=worker)
    row = Worker.objects.get()
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)

    assert (row.queues, row.slots, row.pid) == (["default"], {"pool": 2}, worker.pid)
    assert Worker.objects.filter(stopped_at=None).count() == 0
