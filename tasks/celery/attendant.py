"""Run the services of a Celery worker in its main process: recovery, schedules, samples, and the
row that shows it. In a worker that forks, none runs in the processes that run tasks.

Without the tables the worker ends with a sentence and code 1, before it has a pool.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import signals

if TYPE_CHECKING:
    from tasks.runtime.service_threads import ServiceThreads

_threads: list[ServiceThreads] = []


def attend(*, is_served: bool) -> None:
    """Begin with each worker of this process, and end with it. Unless ``is_served``, only refuse
    to start without our tables."""
    signals.worker_init.connect(_refuse_unmigrated, dispatch_uid="tasks.attendant.migrations")
    if is_served:
        signals.worker_init.connect(_choose_name, dispatch_uid="tasks.attendant")
        signals.worker_ready.connect(_begin, dispatch_uid="tasks.attendant")
        signals.worker_shutting_down.connect(_stop, dispatch_uid="tasks.attendant")
        signals.worker_shutdown.connect(_end, dispatch_uid="tasks.attendant")


def _refuse_unmigrated(**kwargs: Any) -> None:
    from leasing.db.unapplied import unapplied_reason

    if reason := unapplied_reason():
        raise SystemExit(reason)


@cache
def name_of(hostname: str) -> str:
    """Return the name of this worker as a holder: Celery's name of its node and eight digits. The
    processes of its pool inherit it."""
    from leasing.validation.names import unique_name

    return unique_name(hostname)


def _choose_name(sender: Any, **kwargs: Any) -> None:
    name_of(sender.hostname)


def _begin(sender: Any, **kwargs: Any) -> None:
    from tasks import registry
    from tasks.celery import consuming
    from tasks.conf import task_settings
    from tasks.maintenance import services
    from tasks.models import Worker, WorkerRole
    from tasks.runtime.service_threads import ServiceThreads
    from tasks.worker.registration import WorkerRegistration

    consuming.stopping.clear()
    # It may also serve queues with tasks of Celery's own.
    served = [q.name for q in sender.task_consumer.queues if q.name in task_settings.QUEUES]
    registration = WorkerRegistration(
        name_of(sender.hostname),
        role=WorkerRole.CELERY,
        queues=served,
        # A slot of its pool runs handlers of every kind.
        handlers=dict.fromkeys(registry.names(), Worker.POOL),
        slots={Worker.POOL: sender.controller.concurrency},
    )
    threads = ServiceThreads(threading.Event())
    services.start(threads, registration.service)
    _threads.append(threads)


def _stop(**kwargs: Any) -> None:
    from tasks.celery import consuming

    consuming.stopping.set()


def _end(**kwargs: Any) -> None:
    while _threads:
        _threads.pop().stop()
