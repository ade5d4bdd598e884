"""The table of incidents: how each is planted into a site at work, and what the overview says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from leasing.functions import after
from leasing.models import Lease
from tasks.diagnosis.reasons import WAITS
from tasks.models import Queue, Schedule, Task, TaskAttempt, Worker
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.tasks.support import row_of

#: Seconds that a lease of a task lasts here.
TTL = 6
#: Seconds that a step of a plant may take on a loaded machine.
PATIENCE = 60.0
#: A program that holds a lease until it is ended.
HOLDER = """
import time, django
django.setup()
from leasing.models import Lease
with Lease.objects.hold("report:stock", holder="report-service"):
    time.sleep(600)
"""


@dataclass
class Shop:
    """A site at work: two workers of two threads each, under a parent or without."""

    spawn: Spawn
    database: str
    folder: Path
    cleanup: ExitStack
    workers: list[Process] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)

    def open(self, *, parent: bool, **env: str) -> None:
        """Start the workers, which are there when this returns."""
        command = ["manage.py", "run_worker", "--skip-checks", "--threads", "2"]
        command += ["--ttl", str(TTL), "--name"]
        starts = [["shop", "--workers", "2"]]
        if not parent:
            starts = [[f"shop-{number}", "--workers", "0"] for number in (1, 2)]
        self.commands = [[*command, *options] for options in starts]
        self.workers = [self.spawn(each, **env) for each in self.commands]
        present = Worker.objects.present().exclude(slots={})
        wait_for(lambda: present.count() == 2, timeout=PATIENCE, process=self.workers[0])

    def restart_until(self, is_so: Callable[[], bool]) -> None:
        """Start each worker that has ended again, as a supervisor does, until ``is_so``."""

        def looked() -> bool:
            for index, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.workers[index] = self.spawn(self.commands[index])
            return is_so()

        wait_for(looked, timeout=PATIENCE)

    def works(self, count: int = 1, **options: Any) -> list[Task]:
        """Enqueue tasks that work until the test ends, and wait until each has begun."""
        folders = [self.folder / f"{len(os.listdir(self.folder))}-{n}" for n in range(count)]
        tasks = []
        for folder in folders:
            folder.mkdir()
            tasks.append(Task.objects.enqueue("jobs.wait", {"folder": str(folder)}, **options))
        for folder in folders:
            wait_for((folder / "began-1").exists, timeout=PATIENCE, message="a task begins")
        return tasks

    def did(self, count: int, name: str = "jobs.wait") -> None:
        """Have ``count`` tasks done that take no time."""
        (self.folder / "quick").mkdir()
        (self.folder / "quick" / "go-1").touch()
        data = {"folder": str(self.folder / "quick")} if name == "jobs.wait" else {}
        Task.objects.enqueue_many(name, [data] * count)
        wait_for(lambda: Task.objects.succeeded().count() == count, timeout=PATIENCE)


def lease_never_released(shop: Shop) -> None:
    program = shop.folder / "stock_report.py"
    program.write_text(HOLDER)
    process = shop.spawn([str(program)])
    wait_for(Lease.objects.filter(resource="report:stock").exists, process=process)
    task = Task.objects.enqueue("jobs.stock", {})
    wait_for(lambda: row_of(task)["status"] == "running", timeout=PATIENCE)


def key_held(shop: Shop) -> None:
    shop.works(concurrency_key="customer:77")
    Task.objects.enqueue_many("jobs.echo", [{}] * 3, concurrency_key="customer:77")


def row_locked(shop: Shop) -> None:
    (task,) = shop.works()
    session = shop.cleanup.enter_context(psycopg.connect(shop.database, application_name="console"))
    session.execute("SELECT FROM leasing_tasks_task WHERE id = %s FOR UPDATE", [task.pk])


def handler_missing(shop: Shop) -> None:
    Task.objects.enqueue_many("jobs.new", [{}] * 3)
    wait_for(TaskAttempt.objects.filter(outcome="returned").exists, timeout=PATIENCE)


def worker_frozen(shop: Shop) -> None:
    (task,) = shop.works()
    _freeze(Worker.objects.get(name=row_of(task)["holder"]).pid)


def handler_hangs(shop: Shop) -> None:
    shop.did(20)
    shop.works()


def slots_taken(shop: Shop) -> None:
    shop.works(4)
    Task.objects.enqueue_many("jobs.echo", [{}] * 12)


def worker_killed(shop: Shop) -> None:
    Task.objects.enqueue("jobs.kill", {}, max_attempts=8)
    shop.restart_until(lambda: TaskAttempt.objects.filter(outcome="lost").count() >= 3)


def provider_down(shop: Shop) -> None:
    Task.objects.enqueue_many("jobs.charge", [{}] * 10)
    failed = TaskAttempt.objects.filter(outcome="failed")
    wait_for(lambda: failed.count() >= 10, timeout=PATIENCE)


def failed_yesterday() -> None:
    """Have a failed task that is no news."""
    task = Task.objects.enqueue("jobs.charge", {}, max_attempts=1)
    wait_for(Task.objects.failed().exists, timeout=PATIENCE)
    yesterday = after(timedelta(days=-1))
    Task.objects.filter(pk=task.pk).update(processed_at=yesterday)
    TaskAttempt.base_objects.filter(task=task).update(ended_at=yesterday)


def queue_paused(shop: Shop) -> None:
    failed_yesterday()
    Queue.objects.pause("default", by="olga", reason="The bank is away.")
    Task.objects.enqueue_many("jobs.echo", [{}] * 133)


def schedule_paused(shop: Shop) -> None:
    failed_yesterday()
    Schedule.objects.create(name="nightly", task_name="jobs.echo", every=timedelta(seconds=1))
    Schedule.objects.filter(name="nightly").pause(by="olga", reason="Stocktaking.")


@dataclass(frozen=True)
class Incident:
    """An incident, and what the first issue of the overview must have.

    ``words`` are found in it, in headline or detail, and ``link`` in the address to which it
    leads. ``known_after`` is the seconds after which it can be known. ``parent`` is False
    where the workers have none, and None to try both.
    """

    plant: Callable[[Shop], None]
    words: tuple[str, ...]
    link: str
    known_after: float = 0.0
    parent: bool | None = True
    env: dict[str, str] = field(default_factory=dict)


DUE, LATE = WAITS.total_seconds(), Worker.LATE_AFTER.total_seconds()

INCIDENTS = (
    Incident(
        row_locked,
        (
            r"The row of task:\d+ is locked",
            r"pid \d+.* console",
            "Neither renewal nor recovery can",
        ),
        r"/tasks/\d+/",
        TTL,
        None,
    ),
    Incident(
        handler_missing,
        ("3 tasks wait for a handler that no worker has: jobs.new", "restart them"),
        r"name=jobs\.new",
        env={"JOBS_VERSION": "1"},
    ),
    Incident(
        queue_paused,
        ("The queue default was paused by olga; 133 tasks are waiting", "The bank is away"),
        "/queues/",
    ),
    Incident(
        schedule_paused,
        (r"The schedule nightly was paused by olga; \d+ due times? w\w+ skipped", "Stocktaking"),
        "/schedules/",
    ),
    Incident(key_held, (r"3 tasks wait for the key customer:77", r"task:\d+"), r"/tasks/\d+/", DUE),
    Incident(
        slots_taken,
        ("12 tasks wait", r"all 4 threads .*are busy: 4 with jobs\.wait"),
        "/tasks/",
        DUE,
    ),
    Incident(worker_frozen, ("shop", "it is frozen: end it"), "/workers/", LATE, None),
    Incident(handler_hangs, (r"jobs\.wait", "usually takes"), r"/tasks/\d+/", LATE),
    Incident(worker_killed, ("without having stopped", r"jobs\.kill"), r"/tasks/\d+/", 0, None),
    Incident(
        provider_down,
        (r"of \d+ attempts of jobs\.charge", "503 Service Unavailable"),
        "/tasks/",
    ),
    Incident(
        lease_never_released,
        (
            r"wait.* the lease report:stock",
            r"report-service \(stock_report.py, pid \d+ on \S+\)",
        ),
        r"/leases/",
        DUE,
    ),
)


def _freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
