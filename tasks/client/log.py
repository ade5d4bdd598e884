"""The events that a remote worker logs."""

from __future__ import annotations

from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from leasing.runtime.event_logger import Event


def _fields(claimed: Any) -> dict[str, Any]:
    task = claimed.task
    return {"task_id": task.id, "handler": task.name, "queue": task.queue, "attempt": task.attempts}


_task = partial(Event, "tasks.client", about=_fields)
_worker = partial(Event, "tasks.client")


class Log:
    """One attribute an event."""

    worker_started = _worker(INFO, "%(worker)s runs tasks of %(url)s; handlers: %(handlers)s")
    worker_stopping = _worker(INFO, "%(worker)s stopping; tasks still running: %(tasks)s")
    worker_stopped = _worker(INFO, "%(worker)s stopped")
    worker_claim_failed = _worker(
        WARNING, "Claim failed; will retry in %(pause_seconds).1f s: %(error)s"
    )
    worker_recall_failed = _worker(
        WARNING, "Claim not answered; the service recovers what it claimed: %(error)s"
    )
    worker_store_failed = _worker(
        WARNING,
        "Results of %(tasks)s tasks not stored; will retry in %(pause_seconds).1f s: %(error)s",
    )
    worker_failed = _worker(ERROR, "Thread of the worker failed; continuing")
    task_begun = _task(DEBUG, "task:%(task_id)s begins: %(handler)s, attempt %(attempt)s")
    task_failed = _task(WARNING, "task:%(task_id)s failed, attempt %(attempt)s: %(error)s")
    task_lost = _task(WARNING, "task:%(task_id)s was lost: %(reason)s")
    task_refused = _task(
        WARNING, "task:%(task_id)s: the service refused to %(verb)s it: %(reason)s"
    )
    task_put_aside = _task(
        WARNING, "task:%(task_id)s: the service failed to %(verb)s it; will retry alone: %(error)s"
    )
    task_given_up = _task(
        ERROR, "task:%(task_id)s: gave up: the service fails to %(verb)s it: %(error)s"
    )
    task_no_handler = _task(
        WARNING, "task:%(task_id)s given back: no handler is registered for %(handler)s"
    )
    task_unreported = _task(WARNING, "task:%(task_id)s: progress not reported: %(error)s")


log = Log()
