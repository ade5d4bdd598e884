"""Celery as the engine, on Redis: workers of prefork pools, two relays, and a bare worker beside.

The broker is killed and stopped, loses all that waits there, and delivers messages of tasks in
every state again. The rules are those of the queue.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from django.db import Error

from tests.brokers import Broker, free_ports, serve_redis
from tests.chaos import task_rules
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.ledger import TaskFacts
from tests.chaos.task_rules import check_tasks
from tests.chaos.workload import NOBODY, WORKER, Actor, Part, Run, Violation, calls
from tests.chaos.workloads import queue
from tests.chaos.workloads.queue import facts, is_settled, prepare

__all__ = ["actors", "check", "facts", "is_settled", "must_happen", "prepare", "servers"]

Serve = Callable[[int], AbstractContextManager[Broker]]

FAULTS, SETTLE = queue.FAULTS, queue.SETTLE
SETTINGS = {
    "DJANGO_SETTINGS_MODULE": "tests.chaos.celery_settings",
    "LEASING_TTL": str(TTL),
    "PYTHONWARNINGS": "default",  # those of Celery are not ours
}
QUEUE = "default"
#: Seconds within which tasks run again: pauses of a relay whose broker is away grow to fifteen.
AGAIN_WITHIN = 25.0
#: Seconds for which the broker waits for its clients to leave.
STOP_TIMEOUT = 15.0
#: Messages that come again, of tasks in every state.
REPEATED = 50


def servers(stack: ExitStack) -> dict[str, str]:
    return {"broker": f"redis://127.0.0.1:{free_ports(1)[0]}/0"}


def actors(run: Run) -> list[Actor]:
    return actors_of(run, calls(keep_redis, kind=NOBODY, network="direct", lasts=True))


def actors_of(run: Run, broker: Actor) -> list[Actor]:
    """Return the processes, with that of the broker."""
    celery = ["-m", "celery", "-A", "project.celery", "worker", "-Q", QUEUE, "-l", "WARNING"]
    celery += ["-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle"]
    bare = ["manage.py", "run_worker", "--skip-checks", "--workers", "0", "--threads", "1"]
    relay = ["manage.py", "run_relay", "--skip-checks", "--ttl", "3"]
    env = {"CELERY_BROKER_URL": run.servers["broker"], "CHAOS_SECONDS": str(run.seconds)}
    workers = [
        *((f"celery-{n}", [*celery, "-n", f"celery-{n}@chaos"]) for n in range(2)),
        *((f"relay-{n}", relay) for n in range(2)),
        ("bare", bare),
    ]
    return [
        Actor(**{**vars(broker), "env": env}),
        *(
            # Celery's workers may end with the broker, or wait for it.
            Actor(
                name, args, kind=WORKER, env=env, lasts=True, is_foreign=name.startswith("celery")
            )
            for name, args in workers
        ),
        calls(produce, env=env),
    ]


class Producer(queue.Producer):
    """One without tasks of child processes."""

    HANDLERS = (*["chaos.work"] * 6, *["chaos.coroutine"] * 2)


def produce(part: Part) -> None:
    """Enqueue tasks, and cancel some."""
    Producer(part).run()


def keep_redis(part: Part) -> None:
    """Run Redis, and break it for the time of the run."""
    keep(part, serve_redis)


def keep(part: Part, serve: Serve) -> None:
    """Run a broker at the port of its address, and break it for the time of the run."""
    port = int(part.servers["broker"].rpartition(":")[2].partition("/")[0])
    ends_at = time.monotonic() + float(os.environ["CHAOS_SECONDS"])
    with serve(port) as broker:
        faults: dict[str, Callable[[], int | None]] = {
            "broker killed": lambda: _start_again(broker, broker.kill),
            "broker stopped": lambda: _start_again(broker, broker.stop),
            "messages lost": lambda: _purge(broker),
            "messages repeated": lambda: _repeat(broker, part),
        }
        while not part.stop.wait(part.random.uniform(2.0, 6.0)):
            part.recorder.note("broker serves")
            if time.monotonic() < ends_at:
                name = part.random.choice([*faults])
                with part.recorder.call("fault", name, passes=(OSError, Error)) as call:
                    call.ok(messages=faults[name]())

        # Celery's workers are asked to stop at the same moment, and need it for that.
        last = time.monotonic() + STOP_TIMEOUT
        while _has_clients(port) and time.monotonic() < last:
            time.sleep(0.1)


def _has_clients(port: int) -> bool:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def _start_again(broker: Broker, end: Callable[[], None]) -> None:
    end()
    time.sleep(0.5)
    broker.start()


def _purge(broker: Broker) -> int:
    with _connected(broker) as connection, connection.channel() as channel:
        return channel.queue_purge(QUEUE) or 0


def _repeat(broker: Broker, part: Part) -> int:
    from celery import Celery

    from tasks.celery import RUN
    from tasks.models import Task

    keys = list(Task.objects.order_by("-pk").values_list("pk", flat=True)[:500])
    app = Celery(set_as_current=False)
    with _connected(broker) as connection, connection.Producer() as producer:
        for key in part.random.choices(keys, k=REPEATED if keys else 0):
            app.send_task(RUN, args=(key, QUEUE), queue=QUEUE, producer=producer, retry=False)
    return REPEATED


@contextmanager
def _connected(broker: Broker) -> Iterator[Any]:
    from kombu import Connection

    with Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        yield connection.ensure_connection(max_retries=5, interval_start=0.2)


def check(operations: Sequence[Operation], facts: TaskFacts) -> list[Violation]:
    return check_tasks(operations, facts, again_within=AGAIN_WITHIN)


def must_happen(operations: Sequence[Operation], facts: TaskFacts) -> dict[str, int]:
    # A prefork pool loses one task of each child at most: no take-over is certain.
    found = task_rules.must_happen(operations, facts, ["succeeded", "rolled back"], [])
    by = Counter(call.process.partition("-")[0] for call in operations if call.name == "handler")
    return {**found, "attempts by Celery": by["celery"], "attempts by run_worker": by["bare"]}
