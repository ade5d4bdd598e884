"""What runs beside the tasks of a Celery worker, in its main process: recovery, schedules, samples,
and the row that shows it. Of a worker that forks none of it is in the processes that run tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery import signals

from leasing.runtime.callbacks import apart, patient_teller
from leasing.runtime.threads import LastingThread, look_after

_threads: list[LastingThread] = []
_ended = threading.Event()
#: Calls receivers of what these threads do.
_teller = patient_teller()
_name = ""


def attend() -> None:
    """Begin with each worker of this process, and end with it."""
    signals.worker_ready.connect(_begin, dispatch_uid="tasks.attendant")
    signals.worker_shutting_down.connect(_stop, dispatch_uid="tasks.attendant")
    signals.worker_shutdown.connect(_end, dispatch_uid="tasks.attendant")


def _begin(sender: Any, **kwargs: Any) -> None:
    global _name, _teller
    from tasks.celery import consuming
    from tasks.conf import task_settings
    from tasks.maintenance import recovery, sampling, scheduler
    from tasks.models import WorkerRole
    from tasks.worker.registration import keep_present

    consuming.stopping.clear()
    _ended.clear()
    _name = sender.hostname
    _teller = patient_teller()
    # It may also serve queues with tasks of Celery's own.
    served = [q.name for q in sender.task_consumer.queues if q.name in task_settings.QUEUES]
    concurrency = sender.controller.concurrency
    _start("controller", lambda: recovery.run_until(_ended))
    _start("scheduler", lambda: scheduler.run_until(_ended))
    _start("sampler", lambda: sampling.run_until(_ended))
    _start(
        "presence",
        lambda: keep_present(
            _name, _ended, role=WorkerRole.CELERY, queues=served, concurrency=concurrency
        ),
    )
    _start("caretaker", lambda: look_after([_teller, *_threads], _ended))


def _start(name: str, work: Callable[[], object]) -> None:
    from tasks.runtime.connection import lasting_thread

    with apart(_teller):
        _threads.append(lasting_thread(name, work, _ended))


def _stop(**kwargs: Any) -> None:
    from tasks.celery import consuming

    consuming.stopping.set()


def _end(**kwargs: Any) -> None:
    from tasks.worker.registration import PRESENCE_PATIENCE, sign_off

    if not _threads:
        return
    _ended.set()
    for thread in _threads:
        thread.join(PRESENCE_PATIENCE)  # a sign of life under way would undo the signing off
    _threads.clear()
    sign_off(_name)
    _teller.stop(PRESENCE_PATIENCE)
