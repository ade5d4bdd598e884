"""A worker in the process of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from tasks.models import Task
from tasks.worker import WorkerProcess

#: Long enough for a loaded machine; nothing waits that long when all is well.
PATIENCE = 20.0


@contextmanager
def working(**options: Any) -> Iterator[WorkerProcess]:
    """A worker at work; made to stop at the end, if it has not."""
    worker = WorkerProcess(**{"threads": 2, "stop_timeout": PATIENCE, **options})

    def work() -> None:
        worker.run()
        connections.close_all()

    thread = threading.Thread(target=work, name="main thread of a worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def ended(worker: WorkerProcess) -> Callable[[], bool]:
    return worker._ended.is_set


def states() -> list[str]:
    return list(Task.objects.order_by("pk").values_list("status", flat=True))
