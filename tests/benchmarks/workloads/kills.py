"""From kill -9 of a worker to its task running in another: by the database's clock, beyond the ttl.

Two workers serve each of a few queues, side by side. The one that has the task is killed, the other
recovers the task and runs it, a new one takes the place of the dead. ``make chaos`` kills more, but
judges with slack for a loaded machine: the promise of docs/performance.md is measured here.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from datetime import datetime

from leasing.functions import database_now
from tasks.models import Task, TaskStatus, Worker
from tests.benchmarks.bench import Bench, Figures, percentile, soon
from tests.benchmarks.sizes import KILL_QUEUES
from tests.processes import Process

TTL = 2.0


@dataclass
class Ward:
    """A queue with its workers, and the task that one of them runs."""

    bench: Bench
    queue: str
    workers: dict[str, Process] = field(default_factory=dict)
    task: Task | None = None
    killed_at: datetime | None = None
    started: int = 0

    def staff(self) -> None:
        """Have two workers."""
        while len(self.workers) < 2:
            self.started += 1
            name = f"{self.queue}-{self.started}"
            self.workers[name] = self.bench.worker(
                "--workers", "0", "--name", name, "--ttl", f"{TTL:g}", queue=self.queue
            )

    def is_staffed(self) -> bool:
        """Return True if both are up."""
        return all(Worker.objects.called(name).exists() for name in self.workers)

    def begin(self) -> None:
        """Give them a task that never ends."""
        self.task = Task.objects.enqueue("bench.stay", {"n": 1}, queue=self.queue)

    def runs(self) -> bool:
        """Return True if one of them has it."""
        assert self.task is not None
        self.task.refresh_from_db()
        return self.task.status == TaskStatus.RUNNING

    def kill(self) -> None:
        """The one that has it."""
        assert self.task is not None
        victim = self.workers.pop(self.task.holder.partition(":")[0])
        self.killed_at = database_now("default")
        victim.kill()
        victim.wait()

    def ran_again(self) -> bool:
        """Return True if the other has done it."""
        assert self.task is not None
        self.task.refresh_from_db()
        return self.task.status == TaskStatus.SUCCEEDED

    def delay(self) -> float:
        """Seconds from the kill to the claim by the other."""
        assert self.task is not None and self.task.acquired_at is not None and self.killed_at
        return (self.task.acquired_at - self.killed_at).total_seconds()


def run(bench: Bench) -> Figures:
    """Seconds beyond the ttl."""
    wards = [Ward(bench, queue) for queue in KILL_QUEUES][: bench.size.kills]
    delays: list[float] = []
    while len(delays) < bench.size.kills:
        for ward in wards:
            ward.staff()
        for ward in wards:
            soon(ward.is_staffed, "workers are up")
        for ward in wards:
            ward.begin()
        for ward in wards:
            soon(ward.runs, "the task runs")
        for ward in wards:
            ward.kill()
        for ward in wards:
            soon(ward.ran_again, "the task ran again")
            delays.append(ward.delay())
    beyond = "kill -9 to running elsewhere, {}, beyond the ttl (s)"
    return {
        beyond.format("p50"): {"ours": statistics.median(delays) - TTL},
        beyond.format("p99"): {"ours": percentile(delays, 99) - TTL},
    }
