"""Metrics of workers and the web app of a live run, which add up to the database's figures."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from django.db.models import Sum
from django.test import Client
from pytest_django import Settings

from leasing.metrics import leases
from tasks.metrics import database
from tasks.models import AttemptOutcome, Task, TaskAttempt, TaskStatus
from tests.conftest import Spawn
from tests.metrics import Scrape, check_names, scrape
from tests.processes import Process, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

#: So short only because the death of a worker is waited for.
TTL = 5.0
WORKER = ["manage.py", "run_worker", "--skip-checks", "--ttl", str(TTL), "--metrics-port", "0"]
# Each is killed, and shows what it alone has counted.
WORKER += ["--workers", "0"]


class Live:
    """Workers, and the latest that was scraped of each: of one that was killed, too."""

    def __init__(self, spawn: Spawn) -> None:
        self.workers = {name: spawn([*WORKER, "--name", name]) for name in ("ann", "bob")}
        self.ports = {name: _port_of(worker) for name, worker in self.workers.items()}
        self.scraped: dict[str, Scrape] = {}

    def scrape(self) -> None:
        for name, worker in self.workers.items():
            if worker.poll() is None:
                self.scraped[name] = scrape(self.ports[name])

    def sum(self, name: str, **labels: str) -> float:
        return sum(each.sum(name, **labels) for each in self.scraped.values())

    def renewals(self) -> float:
        self.scrape()
        return self.sum("leasing_renewals_total", model="leasing_tasks.task", outcome="renewed")

    def counts(self) -> dict[str, float]:
        """Return the counts of the workers."""
        self.scrape()
        outcomes = ("succeeded", "attempt_failed", "failed", "lost", "cancelled")
        ended = {each: self.sum("tasks_executions_total", outcome=each) for each in outcomes}
        return {
            **ended,
            "claims": self.sum("tasks_claims_total"),
            "recovered": self.sum("tasks_recovered_total"),
            "failed for good": self.sum("tasks_failed_total"),
        }


def stored() -> dict[str, float]:
    """The same, from the tables."""
    tasks = Counter(Task.objects.values_list("status", flat=True))
    attempts = Counter(TaskAttempt.objects.values_list("outcome", flat=True))
    attempts_failed, failed = attempts[AttemptOutcome.FAILED], tasks[TaskStatus.FAILED]
    return {
        "succeeded": tasks[TaskStatus.SUCCEEDED],
        "attempt_failed": attempts_failed - failed,
        "failed": failed,
        "lost": attempts[AttemptOutcome.LOST],
        "cancelled": attempts[AttemptOutcome.CANCELLED],
        "claims": Task.objects.aggregate(Sum("attempts"))["attempts__sum"],
        "recovered": attempts[AttemptOutcome.LOST],
        "failed for good": failed,
    }


def renewals(task: Task) -> int:
    """Return the number of renewals of the latest grant of ``task``."""
    return Task.objects.values_list("renewals", flat=True).get(pk=task.pk)


def _port_of(worker: Process) -> int:
    said = re.compile(r"metrics at http://127\.0\.0\.1:(\d+)/metrics")
    found = wait_for(lambda: said.search(worker.output), timeout=60, process=worker)
    assert found is not None
    return int(found[1])


@pytest.fixture
def of_database(settings: Settings) -> Client:
    settings.LEASING = {**settings.LEASING, "METRICS_TOKEN": "t"}
    return Client(headers={"Authorization": "Bearer t"})


def read(client: Client) -> Scrape:
    leases.figures.cache_clear()
    database.figures.cache_clear()
    return Scrape(client.get("/ops/metrics").content.decode())


@pytest.mark.slow
def test_what_is_scraped_adds_up_to_what_the_database_says(
    spawn: Spawn, of_database: Client, tmp_path: Path
) -> None:
    live = Live(spawn)
    Task.objects.enqueue_many("jobs.echo", [{"crate": n} for n in range(200)])
    # What these are given is no folder, no number.
    Task.objects.enqueue_many("jobs.wait", [{"folder": n} for n in range(5)], max_attempts=2)
    Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": "long"})
    # Completed in a child process, which shows nothing of its own.
    Task.objects.enqueue("jobs.compute", {"do": "complete"})
    wait_for(lambda: not Task.objects.filter(processed_at=None).exists(), timeout=60)
    task = Task.objects.enqueue("jobs.wait", {"folder": str(tmp_path)})
    wait_for(lambda: (tmp_path / "began-1").exists(), timeout=30)
    wait_for(lambda: live.counts() == stored(), timeout=30, message=f"{live.counts()} {stored()}")

    wait_for(lambda: 1 <= renewals(task) <= live.renewals(), timeout=30)

    said = read(of_database)
    assert said.sum("tasks_queue_running", queue="default") == 1
    assert said.sum("leasing_leases", model="leasing_tasks.task", state="active") == 1
    assert said.sum("tasks_workers", role="worker", state="live") == 2
    assert said.sum("tasks_worker_slots_busy") == 0  # which workers say, not the database
    assert live.sum("tasks_worker_slots_busy", kind="thread") == 1
    assert live.sum("leasing_holds", model="leasing_tasks.task") == 1

    task.refresh_from_db()
    doomed = live.workers[task.holder.partition(":")[0]]
    doomed.send_signal(signal.SIGKILL)
    doomed.wait(10)
    for attempt in range(2, 9):  # whichever it comes to be
        (tmp_path / f"go-{attempt}").touch()
    wait_for(Task.objects.filter(pk=task.pk, processed_at__isnull=False).exists, timeout=60)
    wait_for(lambda: live.counts() == stored(), timeout=30, message=f"{live.counts()} {stored()}")

    counts = live.counts()
    assert (counts["succeeded"], counts["attempt_failed"], counts["failed"]) == (202, 5, 6)
    assert counts["lost"] >= 1
    assert live.sum("tasks_death_to_requeue_seconds_sum") >= TTL
    # Claims of what was lost tell how long it waited after its pause, as those of retries do.
    waits = live.sum("tasks_queue_latency_seconds_count")
    assert 206 <= waits <= counts["claims"]
    said = read(of_database)
    for name in ("queue_ready", "queue_scheduled", "queue_running", "orphans"):
        assert said.sum(f"tasks_{name}") == 0, name
    assert said.sum("tasks_failed_current") == stored()["failed"]
    check_names(live.scraped["ann"].text)
