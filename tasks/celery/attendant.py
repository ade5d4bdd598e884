"""Run the services of a Celery worker in its main process: recovery, schedules, samples, the row
that shows it, and the port of its counts. In a worker that forks, none runs in the processes that
run tasks.

Without the tables the worker ends with a sentence and code 1, before it has a pool.
"""

from __future__ import annotations

import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from celery import signals
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from tasks.runtime.service_threads import ServiceThreads

_threads: list[ServiceThreads] = []


def attend(*, is_served: bool, metrics_at: tuple[str, int] | None = None) -> None:
    """Begin with each worker of this process, and end with it.

    Args:
        is_served: False to do no more than refuse to start without our tables.
        metrics_at: The address and the port that show the worker's counts; None: it counts nothing.
    """
    signals.worker_init.connect(_refuse_unmigrated, dispatch_uid="tasks.attendant.migrations")
    if is_served:
        signals.worker_init.connect(_choose_name, dispatch_uid="tasks.attendant")
        signals.worker_ready.connect(_begin, dispatch_uid="tasks.attendant")
        signals.worker_shutting_down.connect(_stop, dispatch_uid="tasks.attendant")
        signals.worker_shutdown.connect(_end, dispatch_uid="tasks.attendant")
    if metrics_at is not None:
        # Before the pool is forked, whose processes count on with what they inherit; and after, or
        # they would inherit the port.
        signals.worker_init.connect(_count, dispatch_uid="tasks.attendant.metrics")
        show = partial(_show_counts, *metrics_at)
        signals.worker_ready.connect(show, weak=False, dispatch_uid="tasks.attendant.metrics")


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


def _count(**kwargs: Any) -> None:
    from leasing.metrics import registry

    try:
        registry.connect()
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from error


def _show_counts(address: str, port: int, *, sender: Any, **kwargs: Any) -> None:
    from leasing.metrics.port import serve_at
    from leasing.metrics.registry import SHARED, is_shared

    forks = type(sender.controller.pool).__module__ == "celery.concurrency.prefork"
    if forks and not is_shared():
        raise SystemExit(f"Metrics of a pool of processes need {SHARED}: see docs/celery.md.")
    try:
        serve_at(address, port)
    except OSError as error:
        raise SystemExit(
            f"Cannot serve metrics at {address} port {port}: {error.strerror}."
        ) from error
