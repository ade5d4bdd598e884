"""Verbs on SQLite as Django sets it up: a transaction that reads first cannot write later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tasks.generator import stop_generator
from tasks.models import Queue, Schedule, Task, Worker
from tests.factories import make_task
from tests.leasing.support import expire

pytestmark = pytest.mark.django_db(transaction=True)


def recover(task: Task) -> None:
    expire(task)
    Task.objects.recover()


VERBS: dict[str, Callable[[Task], object]] = {
    "claim": lambda task: Task.objects.claim("bob"),
    "complete": lambda task: Task.objects.complete(task),
    "complete_many": lambda task: Task.objects.complete_many([(task, 1)]),
    "fail": lambda task: Task.objects.fail(task, "no paper"),
    "give_back": lambda task: Task.objects.give_back(task, "stopped"),
    "finish_step": lambda task: Task.objects.finish_step(task, "first"),
    "recover": recover,
    "cancel": lambda task: Task.objects.cancel(),
    "retry": lambda task: Task.objects.failed().retry(),
    "prune": lambda task: Task.objects.succeeded().prune(timedelta(0)),
    "serve a schedule": lambda task: Schedule.objects.serve(Schedule.objects.get().pk),
    "stop the generator": lambda task: stop_generator(),
    "register a worker": lambda task: Worker.objects.register("v", hostname="h", pid=2),
    "pause": lambda task: Queue.objects.pause("default"),
}
#: One statement, which cannot fail so.
ALONE = {"pause"}


@pytest.mark.parametrize("verb", VERBS)
def test_others_write_before_a_transaction_or_after_it(verb: str, others_write: list[str]) -> None:
    task = make_task(state="running", holder="ann")
    for state in ("ready", "failed", "succeeded"):
        make_task(state=state)
    Worker.objects.register("w", hostname="h", pid=1)
    Schedule.objects.create(name="hourly", task_name=task.name, every=timedelta(hours=1))
    others_write.clear()

    VERBS[verb](task)

    assert verb in ALONE or "database is locked" in others_write
