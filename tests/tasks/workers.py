"""A worker in the process of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import connections

from tasks.execution.attempt import Attempt
from tasks.models import Task
from tasks.runtime.timing import Timing
from tasks.worker.process import WorkerProcess
from tasks.worker.timeouts import Timekeeper
from tests.processes import wait_for
from tests.tasks.support import around

#: Long enough for a loaded machine; nothing waits that long when all is well.
PATIENCE = 20.0
#: What a worker does apart from its tasks. It does not wait for the end of all of that.
DUTIES = {"services", "scheduler", "sampling", "housekeeping"}


def patient(**seconds: Any) -> Timing:
    """Timing for a loaded machine: a worker begins what it has claimed, and waits until what is
    ending has ended. A test that is about giving up passes its own ``seconds``."""
    return Timing(**{"slot_wait": 20.0, "long_after": 20.0, "end_patience": 10.0, **seconds})


@contextmanager
def working(**options: Any) -> Iterator[WorkerProcess]:
    """A worker at work; made to stop at the end, if it has not. It is ``patient``."""
    usual = {"threads": 2, "stop_timeout": PATIENCE, "timing": patient()}
    worker = WorkerProcess(**{**usual, **options})

    def work() -> None:
        worker.run()
        connections.close_all()

    before = set(threading.enumerate())
    thread = threading.Thread(target=work, name="main thread of a worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        # Or they would go on with the rows of the next test.
        wait_for(lambda: not {each.name for each in {*threading.enumerate()} - before} & DUTIES)


def watching_once(begun: Callable[[], object]) -> AbstractContextManager[None]:
    """Watch each attempt as soon as ``begun`` says that its handler is at it: on no machine a
    timeout is over before."""

    def watch_later(watch: Callable[[Attempt], None], attempt: Attempt) -> None:
        def wait_and_watch() -> None:
            wait_for(begun)
            watch(attempt)

        threading.Thread(target=wait_and_watch).start()

    return around("watch", watch_later, of=Timekeeper)


def ended(worker: WorkerProcess) -> Callable[[], bool]:
    return worker.ended.is_set


def states() -> list[str]:
    return list(Task.objects.order_by("pk").values_list("status", flat=True))
