"""Events that nobody hears: a worker makes no instance of a task for them."""

from __future__ import annotations

from typing import Any

import pytest

from tasks import signals
from tasks.models import Task
from tasks.worker.process import Until
from tests.processes import wait_for
from tests.tasks.support import Handlers, instances_made
from tests.tasks.workers import ended, working

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick", "on_postgresql"),
]

COUNT = 1_000


def drained() -> list[str]:
    """Return the names of the instances that a worker makes of tasks while it drains them."""
    Task.objects.enqueue_many("jobs.nothing", [{}] * COUNT)
    with instances_made() as made, working(until=Until.DRAINED) as worker:
        wait_for(ended(worker), timeout=60)
    assert Task.objects.succeeded().count() == COUNT
    return [each["sender"].__name__ for each in made if each["sender"] is Task]


@pytest.mark.usefixtures("unheard")
def test_a_drain_makes_no_instance_where_nobody_listens(handlers: Handlers) -> None:
    handlers["jobs.nothing"] = lambda ctx: None

    assert drained() == []


@pytest.mark.usefixtures("unheard")
def test_a_drain_makes_an_instance_for_each_event_that_a_receiver_hears(
    handlers: Handlers,
) -> None:
    handlers["jobs.nothing"] = lambda ctx: None
    heard: list[Any] = []

    def receiver(task: Task, **details: Any) -> None:
        heard.append(task.pk)

    signals.completed.connect(receiver)
    try:
        assert len(drained()) >= COUNT
    finally:
        signals.completed.disconnect(receiver)
    assert len(set(heard)) == len(heard) == COUNT
