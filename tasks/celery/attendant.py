"""Run the services of a Celery worker in its main process: recovery, schedules, samples, and the
row that shows it. In a worker that forks, none runs in the processes that run tasks.

Before the worker has a pool or consumes anything it looks for its name, as ``run_worker`` does: it
ends with a sentence and code 2 if a running process of this host has it, and waits for one of
another host. If another process takes the name later, it finishes its tasks and ends with code 2.
Without the tables it ends with a sentence and code 1.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from celery import signals

if TYPE_CHECKING:
    from tasks.exceptions import NameTaken
    from tasks.runtime.service_threads import ServiceThreads

_threads: list[ServiceThreads] = []


def attend(*, is_served: bool) -> None:
    """Begin with each worker of this process, and end with it. Unless ``is_served``, only refuse
    to start without our tables."""
    signals.worker_init.connect(_refuse_unmigrated, dispatch_uid="tasks.attendant.migrations")
    if is_served:
        signals.worker_init.connect(_look_for_name, dispatch_uid="tasks.attendant")
        signals.worker_ready.connect(_begin, dispatch_uid="tasks.attendant")
        signals.worker_shutting_down.connect(_stop, dispatch_uid="tasks.attendant")
        signals.worker_shutdown.connect(_end, dispatch_uid="tasks.attendant")


def _refuse_unmigrated(**kwargs: Any) -> None:
    from leasing.db.unapplied import unapplied_reason

    if reason := unapplied_reason():
        raise SystemExit(reason)


def _look_for_name(sender: Any, **kwargs: Any) -> None:
    from django.db import connections

    from leasing.conf import leasing_settings
    from tasks.exceptions import NameTaken
    from tasks.models import WorkerRole
    from tasks.worker.registration import Presence, sign_off

    # What it serves is not known before its broker is there: it signs off until then.
    registration = Presence(
        sender.hostname, role=WorkerRole.CELERY, queues=[], handlers={}, slots={}
    )
    try:
        registration.begin(threading.Event())
        sign_off(sender.hostname)
    except NameTaken as taken:
        sys.stderr.write(f"{taken}\n")
        raise SystemExit(taken.EXIT_CODE) from taken
    finally:
        connections[leasing_settings.DATABASE].close()  # or the pool would inherit it


def _lose_name(taken: NameTaken) -> None:
    from celery.worker import state

    sys.stderr.write(f"{taken}\n")
    state.should_stop = taken.EXIT_CODE  # as a signal would: its loop looks at it


def _begin(sender: Any, **kwargs: Any) -> None:
    from tasks import registry
    from tasks.celery import consuming
    from tasks.conf import task_settings
    from tasks.maintenance import services
    from tasks.models import Worker, WorkerRole
    from tasks.runtime.service_threads import ServiceThreads
    from tasks.worker.registration import Presence

    consuming.stopping.clear()
    # It may also serve queues with tasks of Celery's own.
    served = [q.name for q in sender.task_consumer.queues if q.name in task_settings.QUEUES]
    registration = Presence(
        sender.hostname,
        on_taken=_lose_name,
        role=WorkerRole.CELERY,
        queues=served,
        # A slot of its pool runs handlers of every kind.
        handlers=dict.fromkeys(registry.names(), Worker.POOL),
        slots={Worker.POOL: sender.controller.concurrency},
    )
    threads = ServiceThreads(threading.Event())
    services.start(threads, registration.service())
    _threads.append(threads)


def _stop(**kwargs: Any) -> None:
    from tasks.celery import consuming

    consuming.stopping.set()


def _end(**kwargs: Any) -> None:
    while _threads:
        _threads.pop().stop()
