"""Remote workers and producers, which have no database and call a service that is killed at times.

Beside them one producer writes to the database of the service, and ``run_recovery`` serves the
schedule. The rules are those of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasing.client.exceptions import RequestRefused, ServiceError
from tasks.client import TaskClient
from tests.chaos import ledger, task_rules
from tests.chaos.faults import FAULTS as ALL
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.ledger import TaskFacts
from tests.chaos.workload import NOBODY, WORKER, Actor, Part, Run, calls, website
from tests.chaos.workloads import queue
from tests.chaos.workloads.queue import SETTINGS, SETTLE, check, facts, is_settled

__all__ = [
    "FAULTS",
    "FIRST",
    "SETTINGS",
    "SETTLE",
    "actors",
    "check",
    "facts",
    "is_settled",
    "must_happen",
    "prepare",
]

FIRST = ("kill-web", "stop", "kill-worker")
FAULTS = [
    name for name in ALL if name not in ("stop-inside", "kill-holding", "kill-child", "kill-parent")
]
SCOPES = [f"leasing_tasks.{name}" for name in ("view_task", "add_task", "change_task")]
HANDLERS = (*["chaos.work"] * 10, *["chaos.coroutine"] * 6, "chaos.stubborn")


def actors(run: Run) -> list[Actor]:
    token = ["--url", f"{run.servers['web']}/api", "--token-file", str(run.folder / "token")]
    # The service is asked to stop at the same moment: what a worker has yet to store it cannot.
    options = ["--ttl", str(TTL), "--wait", "1", "--stop-timeout", "8", "--log-level", "WARNING"]
    worker = ["-m", "tasks.client", "tests.chaos.remote_handlers", *token, *options]
    recovery = ["manage.py", "run_recovery", "--skip-checks"]
    return [
        website(run),
        Actor("recovery", recovery, kind=NOBODY, lasts=True),
        Actor("remote-0", [*worker, "--concurrency", "12"], kind=WORKER, lasts=True),
        Actor("remote-1", [*worker, "--concurrency", "6"], kind=WORKER, lasts=True),
        calls(produce),
        calls(produce_remotely),
    ]


def prepare(run: Run) -> None:
    from leasing.models import ApiToken

    ledger.install()
    (run.folder / "token").write_text(ApiToken.objects.issue("remote", scopes=SCOPES)[1])


class Producer(queue.Producer):
    """One of the service's own site."""

    HANDLERS = HANDLERS
    BACKLOG = 60


def produce(part: Part) -> None:
    """Enqueue in the database of the service."""
    Producer(part).run()


def produce_remotely(part: Part) -> None:
    """Enqueue over HTTP."""
    producer = Producer(part)
    token = (part.folder / "token").read_text()
    with TaskClient(f"{part.servers['web']}/api", token, patience=5) as client:
        while not part.stop.wait(part.random.uniform(0.0, 0.5)):
            tag, name, data, options = producer.task()
            with part.recorder.call("enqueue", name, passes=(ServiceError,), tag=tag) as call:
                try:
                    call.ok(task=client.enqueue(name, data, **options).id)
                except RequestRefused as error:
                    call.failed(error=type(error).__name__, message=str(error))


def must_happen(operations: Sequence[Operation], facts: TaskFacts) -> dict[str, int]:
    always = ("succeeded", "slots of schedules")
    return task_rules.must_happen(operations, facts, always, ["remote-0", "remote-1"])
