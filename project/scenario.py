"""The scenario of ``manage.py demo --scenario abc``: three jobs, three workers, two faults.

It has a database of its own, in a folder that is removed at its end: ``play`` starts the command
again in that environment, where ``_play`` runs the workers and does to them what the story says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from threading import Thread

from django.core.management import CommandError, call_command
from django.db import transaction

from leasing.humanize import plural
from project.supervisor import MANAGE, SiteProcess, Supervisor
from tasks.models import Task, TaskAttempt
from tasks.sample import SLEEP

#: Names the folder of the scenario's database, in the environment of its processes.
FOLDER = "DEMO_SCENARIO_FOLDER"
#: Seconds of a lease: what a fault costs.
TTL = 4
#: Seconds that a step of the story may take.
PATIENCE = 60.0


def play() -> None:
    """Play the story, and print it as it happens. Raises CommandError if a step does not come."""
    if FOLDER in os.environ:
        _play()
        return
    with TemporaryDirectory(prefix="leasing-scenario-") as folder:
        env = {"DATABASE_URL": f"sqlite:///{folder}/db.sqlite3", FOLDER: folder}
        env |= {"LEASING_TTL": str(TTL), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, str(MANAGE), "demo", "--scenario", "abc", "--skip-checks"]
        code = subprocess.run(command, env={**os.environ, **env}, check=False).returncode
    if code:
        raise CommandError("The scenario did not end as it should.", returncode=code)


def _play() -> None:
    call_command("migrate", verbosity=0, interactive=False)
    options = ["--skip-checks", "--verbosity", "0", "--workers", "0", "--threads", "1"]
    workers = [
        SiteProcess(name, ["run_worker", *options, "--name", name])
        for name in ("worker-1", "worker-2", "worker-3")
    ]
    site = Supervisor(workers, {}, sys.stdout)
    running = Thread(target=site.run)
    running.start()
    try:
        _tell(site, {each.name: each for each in workers})
    finally:
        site.stop()
        running.join()
    for task in Task.objects.order_by("pk"):
        sys.stdout.write("\n")
        call_command("tasks", "trace", str(task.pk))


def _tell(site: Supervisor, workers: dict[str, SiteProcess]) -> None:
    def say(line: str) -> None:
        site.say("story", line)

    def begin(seconds: float) -> Task:
        task = Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": seconds})
        _wait(Task.objects.filter(pk=task.pk, started_at__isnull=False).exists)
        return task

    def signal_holder(task: Task, number: signal.Signals) -> str:
        # A lease is renewed a while after its claim: by then the task surely sleeps.
        _wait(Task.objects.filter(pk=task.pk, renewals__gt=0).exists)
        # While nobody else writes: a frozen process would keep SQLite's lock.
        with transaction.atomic():
            task.refresh_from_db()
            _signal(workers[_label(task.holder)], number)
            time.sleep(0.1)
        return task.holder

    say(f"Three workers start. A lease lasts {plural(TTL, 'second')} unless it is renewed.")
    quick = begin(0.5)
    _wait(Task.objects.filter(pk=quick.pk).succeeded().exists)
    say(f"A, task:{quick.pk}, was quick: it is done.")
    slow = begin(3)
    frozen = signal_holder(slow, signal.SIGSTOP)
    say(f"B, task:{slow.pk}, runs on {frozen}, which is frozen now: it cannot renew its lease.")
    lost = begin(3)
    killed = signal_holder(lost, signal.SIGKILL)
    say(f"C, task:{lost.pk}, runs on {killed}, which is killed now.")
    say("The leases of B and C run out. Then others run both.")
    _wait(lambda: Task.objects.succeeded().count() == 3)
    say(f"B and C are done. {frozen} goes on where it was, and completes B a second time.")
    _signal(workers[_label(frozen)], signal.SIGCONT)
    _wait(TaskAttempt.objects.filter(task=slow, refused_at__isnull=False).exists)
    say("Its late result is refused: another worker has had B since.")
    say("The traces of A, B and C:")


def _label(holder: str) -> str:
    return holder.rpartition(":")[0]


def _signal(worker: SiteProcess, number: signal.Signals) -> None:
    assert worker.process is not None
    worker.process.send_signal(number)


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise CommandError("The next step of the story did not come.")
        time.sleep(0.05)
