"""The queue: producers and cancellers, a fleet of workers under a parent, and a bare worker.

Tasks are of threads, coroutines and child processes, with one attempt and with several, with unique
keys and key slots; some fail, some hold their row for longer than a ttl; and there is a schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from django.db import Error, connection, transaction

from tasks.exceptions import KeyBusy
from tests.chaos import ledger, task_rules
from tests.chaos.faults import FAULTS as ALL
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.ledger import TaskFacts
from tests.chaos.task_rules import check_tasks, slots_served_once
from tests.chaos.workload import WORKER, Actor, Part, Run, Violation, calls

#: Seconds that a loaded machine may take for what waits at the end.
SETTLE = 120.0
FIRST = ("kill-child", "stop", "kill-parent", "kill-worker")
FAULTS = [name for name in ALL if name not in ("stop-inside", "kill-holding", "kill-web")]
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.chaos.task_settings", "LEASING_TTL": str(TTL)}
#: Seconds that tasks hold their rows: most are short, and some meet their end.
SECONDS = (*[0.0] * 12, *[0.03] * 6, 0.3, 0.3, 1.0, 2.5 * TTL)
KEYS = 4
LIMIT = 2


class RolledBack(Exception):
    """The transaction was to be rolled back."""


def actors(run: Run) -> list[Actor]:
    slots = ["--coroutines", "4", "--processes", "1", "--skip-checks"]
    worker = ["manage.py", "run_worker", *slots]
    return [
        calls(produce, 0),
        calls(produce, 1, network="pooler"),
        Actor("fleet", [*worker, "--workers", "2", "--threads", "4"], kind=WORKER, lasts=True),
        Actor("bare", [*worker, "--workers", "0", "--threads", "3"], kind=WORKER, lasts=True),
    ]


def prepare(run: Run) -> None:
    ledger.install()


def produce(part: Part) -> None:
    """Enqueue tasks of each kind, and cancel some."""
    Producer(part).run()


class Producer:
    """Calls the queue's verbs by chance, and records each call."""

    #: Tasks that may wait before it pauses.
    BACKLOG = 300
    #: The handlers whose tasks it enqueues.
    HANDLERS: Sequence[str] = (
        *["chaos.work"] * 10,
        *["chaos.coroutine"] * 6,
        *["chaos.in_process"] * 2,
        "chaos.stubborn",
    )

    def __init__(self, part: Part) -> None:
        self.part, self.random, self.record = part, part.random, part.recorder.call
        self._number = 0
        self._tags = [""]

    def run(self) -> None:
        """Go on until the part is to stop."""
        calls: list[Callable[[], None]] = [
            *[self.enqueue] * 5,
            *[self.in_transaction] * 5,
            *[self.many] * 2,
            *[self.keyed] * 3,
            *[self.limited] * 3,
            self.cancel,
        ]
        while not self.part.stop.is_set():
            with suppress(Error, KeyBusy):
                self.random.choice(calls)()
                self._wait_for_room()
            self.part.stop.wait(self.random.uniform(0.0, 0.1))

    # Each makes one call

    def enqueue(self) -> None:
        """Enqueue again with the same key until there is an answer."""
        tag, name, data, options = self.task()
        for _ in range(5):
            with self.record("enqueue", name, passes=(Error,), tag=tag) as call:
                task = self.tasks.enqueue(name, data, idempotency_key=tag, **options)
                call.ok(task=task.pk)
                return
            self._hang_up()

    def in_transaction(self) -> None:
        """Enqueue in a transaction, which is rolled back at times."""
        tag, name, data, options = self.task()
        with self.record("enqueue", name, passes=(Error,), tag=tag) as call:
            try:
                with transaction.atomic():
                    task = self.tasks.enqueue(name, data, **options)
                    if self.random.random() < 0.3:
                        raise RolledBack
            except RolledBack:
                call.failed(error="RolledBack")
            else:
                call.ok(task=task.pk)

    def many(self) -> None:
        """Enqueue so many that workers claim some ahead of free slots: with one attempt, too."""
        found = [self.task("chaos.work", seconds=0.0)[0] for _ in range(30)]
        options = {"max_attempts": self.random.choice([1, 1, 5])}
        with self.record("enqueue", "chaos.work", passes=(Error,), tags=found):
            self.tasks.enqueue_many("chaos.work", [{"tag": tag} for tag in found], **options)

    def keyed(self) -> None:
        """Enqueue with a unique key that may be taken."""
        tag, name, data, options = self.task(seconds=0.3)
        key = f"key:{self.random.randrange(KEYS)}"
        with self.record("enqueue", name, passes=(Error, KeyBusy), tag=tag, unique_key=key) as call:
            task = self.tasks.enqueue(name, data, unique_key=key, **options)
            call.ok(task=task.pk, duplicate=task.pk if task.is_duplicate else None)

    def limited(self) -> None:
        """Enqueue with a concurrency key that others have, too."""
        tag, name, data, options = self.task("chaos.work", seconds=0.1)
        key = f"limit:{self.random.randrange(KEYS)}"
        data |= {"limit_key": key, "limit": LIMIT}
        with self.record("enqueue", name, passes=(Error,), tag=tag) as call:
            limits = {"concurrency_key": key, "concurrency_limit": LIMIT}
            call.ok(task=self.tasks.enqueue(name, data, **options, **limits).pk)

    def cancel(self) -> None:
        """Cancel a task that waits, or one of those enqueued lately."""
        if self.random.random() < 0.5:
            tag, name, data, options = self.task()
            with self.record("enqueue", name, passes=(Error,), tag=tag) as call:
                call.ok(task=self.tasks.enqueue(name, data, delay=1.0, **options).pk)
        tag = self.random.choice(self._tags[-10:])
        with self.record("cancel", tag, passes=(Error,), tag=tag) as call:
            call.ok(changed=self.tasks.filter(task_data__tag=tag).cancel(by="chaos"))

    @property
    def tasks(self) -> Any:
        """The manager of tasks."""
        from tasks.models import Task

        return Task.objects

    def task(self, name: str = "", **data: Any) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
        """Draw a task: its tag, its handler, its data and options."""
        self._number += 1
        tag = f"{self.part.recorder.process}-{self._number}"
        self._tags = [*self._tags[-50:], tag]
        name = name or self.random.choice(self.HANDLERS)
        data = {"tag": tag, "seconds": self.random.choice(SECONDS), **data}
        options = {"max_attempts": self.random.choice([1, 2, 5, 5])}
        if name == "chaos.stubborn":  # still at work when another attempt has begun
            data["seconds"], options["max_attempts"] = 2.5 * TTL, 5
        elif self.random.random() < 0.1:
            data["fails"] = self.random.choice([1, 2])
        return tag, name, data, options

    def _wait_for_room(self) -> None:
        while not self.part.stop.is_set() and self._number % 20 == 0:
            with self.record("count") as call:
                waiting = self.tasks.filter(processed_at=None).count()
                call.ok(waiting=waiting)
            if waiting < self.BACKLOG:
                break
            self.part.stop.wait(0.2)

    def _hang_up(self) -> None:
        connection.close()
        time.sleep(0.1)


def is_settled(run: Run) -> bool:
    from tasks.models import Task

    mine = Task.objects.filter(name__startswith="chaos.").exclude(name="chaos.tick")
    return not mine.filter(processed_at=None).exists()


def facts(run: Run) -> TaskFacts:
    return ledger.read()


def check(operations: Sequence[Operation], facts: TaskFacts) -> list[Violation]:
    return [
        *check_tasks(operations, facts),
        *slots_served_once(facts, "chaos.tick", every=1_000_000),
    ]


def must_happen(operations: Sequence[Operation], facts: TaskFacts) -> dict[str, int]:
    always = ("succeeded", "failed", "cancelled", "rolled back", "duplicates", "slots of schedules")
    return task_rules.must_happen(operations, facts, always, ["fleet", "bare"])
