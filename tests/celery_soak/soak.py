"""One run: processes, faults, and what is judged in the end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery
from django.db import connection, transaction
from django.db.models import Sum
from kombu import Connection

from tasks.celery import RUN
from tasks.models import Task, TaskAttempt, Worker
from tasks.sample import SLEEP
from tests.brokers import Broker, NoBroker
from tests.processes import Process

QUEUE = "default"

#: Starts a process with what is added to its environment.
Start = Callable[..., Process]

WORKER = [
    *("-m", "celery", "-A", "project.celery", "worker", "-Q", QUEUE, "-l", "WARNING"),
    *("-P", "prefork", "-c", "2", "--without-gossip", "--without-mingle"),
]
#: How many tasks may wait: the rest is enqueued as they end, so that faults meet work.
WAITING = 200

#: Every update of a task that has ended well, or ends so, is written down by the database.
_LEDGER = {
    "postgresql": """
        CREATE TABLE soak_accepted (task_id bigint NOT NULL);
        CREATE FUNCTION soak_accept() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO soak_accepted VALUES (NEW.id); RETURN NULL; END $$;
        CREATE TRIGGER soak_accept AFTER UPDATE ON leasing_tasks_task FOR EACH ROW
            WHEN (NEW.status = 'succeeded') EXECUTE FUNCTION soak_accept();
    """,
    "sqlite": """
        CREATE TABLE soak_accepted (task_id bigint NOT NULL);
        CREATE TRIGGER soak_accept AFTER UPDATE ON leasing_tasks_task
            WHEN NEW.status = 'succeeded'
            BEGIN INSERT INTO soak_accepted VALUES (NEW.id); END;
    """,
}
_NO_LEDGER = {
    "postgresql": "DROP TRIGGER soak_accept ON leasing_tasks_task; DROP FUNCTION soak_accept();"
    " DROP TABLE soak_accepted;",
    "sqlite": "DROP TRIGGER soak_accept; DROP TABLE soak_accepted;",
}


@dataclass
class Outcome:
    """The result of a run."""

    #: The number to be run, and the number stored when it ended.
    wanted: int
    tasks: int
    succeeded: int
    #: The number of completions that the database accepted, and of their tasks.
    accepted: int
    accepted_tasks: int
    #: Claims beyond one a task, and attempts whose worker was gone.
    again: int
    lost: int
    refused: int
    faults: Counter[str]
    by_celery: int
    by_others: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Return True if all were run, none was lost and none accepted twice."""
        return self.wanted == self.tasks == self.succeeded == self.accepted == self.accepted_tasks

    @property
    def kinds(self) -> set[str]:
        """Return the kinds of faults."""
        return set(self.faults)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.faults.items()))
        return (
            f"{'ok' if self.is_right else 'WRONG'}: {self.accepted_tasks} of {self.wanted} tasks "
            f"run, {self.tasks - self.succeeded} of those stored not ended in time, "
            f"{self.accepted - self.accepted_tasks} accepted twice; {self.by_celery} by Celery, "
            f"{self.by_others} by run_worker; {self.again} claimed again ({self.lost} after a "
            f"worker was gone), {self.refused} late results refused; {faults or 'no faults'}; "
            f"{self.seconds:.0f} s"
        )


@dataclass
class Soak:
    """Runs ``size`` tasks through ``broker``."""

    start: Start
    broker: Broker
    size: int
    seed: int = 0
    #: Of a fault of each kind: how many.
    restarts: int = 1
    kills: int = 2
    relay_kills: int = 1
    #: The times that all that waits at the broker is lost, and that much of it comes twice.
    purges: int = 1
    repeats: int = 1
    workers: int = 2
    side_by_side: bool = False
    #: Seconds that each takes.
    work: float = 0.01
    patience: float = 600.0
    faults: Counter[str] = field(default_factory=Counter)
    crew: dict[str, Process] = field(default_factory=dict)
    _began: bool = False

    def run(self) -> Outcome:
        """Enqueue, break, and wait until every task has ended."""
        began_at = time.monotonic()
        chance = random.Random(self.seed)
        _script(_LEDGER)
        try:
            self._hire()
            plan = self._plan(chance)
            kept_back = self.size // (len(plan) + 1)
            stored = 0
            while (done := Task.objects.succeeded().count()) < self.size:
                most = self._allowed(done, self.size - kept_back if plan else self.size)
                if stored < most and stored - done < WAITING and self._is_staffed():
                    stored += self._enqueue(min(WAITING // 4, most - stored), chance)
                if plan and done >= plan[0][0]:
                    plan.pop(0)[1](chance)
                self._keep_staffed()
                if time.monotonic() - began_at > self.patience:
                    break
                time.sleep(0.05)
            return self._outcome(time.monotonic() - began_at)
        finally:
            for process in self.crew.values():
                _kill(process)
            _script(_NO_LEDGER)

    def _hire(self) -> None:
        for number in range(self.workers):
            self._start_one(f"worker{number}")
        for name in ("relay0", "relay1"):
            self._start_one(name)

    def _allowed(self, done: int, before_the_last_fault: int) -> int:
        """Return the number of tasks that may be stored by now, however fast they are run: faults
        come before the last of them. A plain worker joins when Celery has run some, and leaves it
        none to run without it: alone either could end them all while the others start."""
        if not self.side_by_side or Worker.objects.filter(name="plain").exists():
            return before_the_last_fault
        if "plain" not in self.crew and done >= self.size // 3:
            self._start_one("plain")
        return min(self.size // 2, before_the_last_fault)

    def _start_one(self, name: str) -> None:
        args: Sequence[str]
        if name.startswith("worker"):
            args = [*WORKER, "-n", f"{name}@soak"]
        elif name == "plain":
            args = [
                "manage.py",
                "run_worker",
                "--workers",
                "0",
                "--threads",
                "1",
                "--name",
                "plain",
            ]
        else:
            args = ["manage.py", "run_relay", "--ttl", "3", "--name", name]
        self.crew[name] = self.start(args)

    def _is_staffed(self) -> bool:
        """Return True once every worker has begun; from then on they need not all be there."""
        if not self._began:
            workers = [name for name in self.crew if not name.startswith("relay")]
            self._began = Worker.objects.count() >= len(workers)
        return self._began

    def _keep_staffed(self) -> None:
        for name, process in list(self.crew.items()):
            if process.poll() is not None:
                self._start_one(name)

    def _enqueue(self, count: int, chance: random.Random) -> int:
        with transaction.atomic():
            Task.objects.enqueue_many(SLEEP, [{"sleep_duration_seconds": self.work}] * count)
        if chance.random() < 0.2:
            with suppress(ZeroDivisionError), transaction.atomic():
                Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": self.work})
                raise ZeroDivisionError
        return count

    # Breaking

    def _plan(self, chance: random.Random) -> list[tuple[int, Callable[[random.Random], None]]]:
        """Return the faults, and after how many ended tasks they come."""
        faults: list[Callable[[random.Random], None]] = [
            *[self._restart_broker] * self.restarts,
            *[self._kill_worker] * self.kills,
            *[self._kill_relay] * self.relay_kills,
            *[self._purge] * self.purges,
            *[self._repeat] * self.repeats,
        ]
        chance.shuffle(faults)
        step = self.size / (len(faults) + 1)
        return [(int(step * (number + 0.5)), fault) for number, fault in enumerate(faults)]

    def _restart_broker(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.broker.kill()
            self.faults["broker kills"] += 1
        else:
            self.broker.stop()
            self.faults["broker stops"] += 1
        time.sleep(0.5)
        for left in (2, 1, 0):
            try:
                self.broker.start()
                return
            except NoBroker:
                # RabbitMQ gives up where a loaded machine lets parts of it wait.
                self.faults["failed starts"] += 1
                if not left:
                    raise

    def _kill_worker(self, chance: random.Random) -> None:
        """All of a worker, or one of the processes that run its tasks."""
        names = [name for name in self.crew if name.startswith("worker")]
        process = self.crew[chance.choice(names)]
        children = _children(process.pid)
        if children and chance.random() < 0.3:
            os.kill(chance.choice(children), signal.SIGKILL)
            self.faults["child kills"] += 1
        else:
            _kill(process)
            self.faults["worker kills"] += 1

    def _kill_relay(self, chance: random.Random) -> None:
        name = chance.choice([name for name in self.crew if name.startswith("relay")])
        _kill(self.crew[name])
        self.faults["relay kills"] += 1

    def _purge(self, chance: random.Random) -> None:
        with self._connection() as connection, connection.channel() as channel:
            self.faults["messages lost"] += channel.queue_purge(QUEUE) or 0
        self.faults["purges"] += 1

    def _repeat(self, chance: random.Random) -> None:
        """Send messages for tasks in every state."""
        keys = list(Task.objects.values_list("pk", flat=True))
        app = Celery(set_as_current=False)
        with self._connection() as connection, connection.Producer() as producer:
            for key in chance.choices(keys, k=50):
                app.send_task(RUN, args=(key, QUEUE), queue=QUEUE, producer=producer, retry=False)
        self.faults["repeated messages"] += 50

    def _connection(self) -> Any:
        connection = Connection(self.broker.url, transport_options={"confirm_publish": True})
        return connection.ensure_connection(max_retries=5, interval_start=0.2)

    # Judging

    def _outcome(self, seconds: float) -> Outcome:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*), count(DISTINCT task_id) FROM soak_accepted")
            accepted, accepted_tasks = cursor.fetchone()
        tasks: Any = Task.objects.all()
        grants = tasks.aggregate(all=Sum("grants"))["all"] or 0
        lost = TaskAttempt.objects.filter(outcome="lost")
        succeeded = tasks.succeeded()
        return Outcome(
            wanted=self.size,
            tasks=tasks.count(),
            succeeded=succeeded.count(),
            accepted=accepted,
            accepted_tasks=accepted_tasks,
            again=grants - tasks.count(),
            lost=lost.count(),
            refused=TaskAttempt.objects.filter(refused_at__isnull=False).count(),
            faults=self.faults,
            by_celery=succeeded.filter(holder__startswith="worker").count(),
            by_others=succeeded.filter(holder="plain").count(),
            seconds=seconds,
        )


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def _script(scripts: dict[str, str]) -> None:
    text = scripts[connection.vendor]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.connection.executescript(text)
        else:
            cursor.execute(text)
