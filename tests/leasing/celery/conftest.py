"""An app of Celery in the memory of the test, and its tasks traced as a worker traces them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.app.trace import build_tracer


class Outcome(NamedTuple):
    """The result of a call."""

    state: str
    value: Any
    id: str


class Bench:
    """An app, and calls of its tasks as a worker makes them."""

    def __init__(self) -> None:
        self.app = Celery(
            f"bench-{uuid.uuid4()}",
            broker="memory://",
            backend="cache+memory://",
            set_as_current=False,
        )
        self.app.conf.task_default_queue = str(uuid.uuid4())

    def run(self, task: Any, *args: Any, **request: Any) -> Outcome:
        """Run the call as a worker's process does; ``request`` is of its message."""
        kwargs = request.pop("kwargs", {})
        task_id = request.setdefault("id", str(uuid.uuid4()))
        delivery = {"exchange": "", "routing_key": self.app.conf.task_default_queue}
        request = {"retries": 0, "delivery_info": delivery, **request}
        done = build_tracer(task.name, task, app=self.app)(task_id, args, kwargs, request)
        if done.info is None:
            return Outcome("SUCCESS", done.retval, task_id)
        return Outcome(done.info.state, done.info.retval, task_id)

    def sent(self) -> list[dict[str, Any]]:
        """The messages that wait in the broker: headers, and the body's arguments."""
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.app.conf.task_default_queue)
            found: list[dict[str, Any]] = []
            while True:
                try:
                    message = queue.get(block=False)
                except queue.Empty:
                    return found
                message.ack()
                found.append({**message.headers, "body": json.loads(message.body)})


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.app.close()
