"""The command ``python -m tasks.client``, against a service that is killed and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from leasing.models import ApiToken
from tasks.models import Task, TaskAttempt
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.remote import SCOPES
from tests.web_servers import Site

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

HANDLERS = """
import os, pathlib, time
from tasks.client import handler

RUNS = pathlib.Path({runs!r})

@handler("jobs.echo")
def echo(ctx, word):
    with RUNS.open("a") as runs:
        runs.write(word + "\\n")
    for _ in range({steps}):
        time.sleep(0.01)
    return word

@handler("jobs.fork")
def fork(ctx, end):
    pid = os.fork()
    if pid == 0 and end == "raise":
        raise ValueError("no luck")
    return pid and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@handler("jobs.fork_in_coroutine")
async def fork_in_coroutine(ctx, end):
    return fork(ctx, end)
"""


class Place:
    """A service, which can be killed, and workers that know its address and a token alone."""

    def __init__(self, spawn: Spawn, folder: Path) -> None:
        self._spawn = spawn
        self._folder = folder
        (self._port,) = free_ports(1)
        self.runs = folder / "runs"
        self.runs.touch()
        _, token = ApiToken.objects.issue("remote", scopes=SCOPES)
        (folder / "token").write_text(f"{token}\n")

    def serve(self) -> Process:
        """Start the service."""
        args = ["manage.py", "runserver", "--noreload", "--skip-checks", f"127.0.0.1:{self._port}"]
        service = self._spawn(args, PYTHONWARNINGS="default")
        wait_for(Site(self._port).answers, timeout=60, process=service)
        return service

    def work(self, *options: str, steps: int = 5) -> Process:
        """Start a worker."""
        handlers = self._folder / "handlers.py"
        handlers.write_text(HANDLERS.format(runs=str(self.runs), steps=steps))
        address = ["--url", f"http://127.0.0.1:{self._port}/api"]
        token = ["--token-file", str(self._folder / "token")]
        # No settings, and no address of a database that it could use.
        env = {"DJANGO_SETTINGS_MODULE": "", "DATABASE_URL": "", "PYTHONWARNINGS": "default"}
        args = ["-m", "tasks.client", *address, *token, *options, str(handlers)]
        return self._spawn(args, **env)

    def count(self) -> Counter[str]:
        """Return how often each task was begun."""
        return Counter(self.runs.read_text().split())


@pytest.fixture
def place(spawn_cold: Spawn, tmp_path: Path) -> Place:
    return Place(spawn_cold, tmp_path)


def enqueued(count: int) -> None:
    Task.objects.enqueue_many("jobs.echo", [{"word": str(number)} for number in range(count)])


def succeeded(count: int) -> Callable[[], bool]:
    return lambda: Task.objects.filter(status="succeeded").count() == count


#: Seconds for which the service is away. AWAY=30 takes as long.
AWAY = float(os.environ.get("AWAY", "5"))


@pytest.mark.parametrize("away", [0.0, AWAY], ids=["restarted", "away"])
def test_a_service_that_was_killed_loses_and_doubles_nothing(place: Place, away: float) -> None:
    service = place.serve()
    enqueued(200)
    worker = place.work("--ttl", str(30 + AWAY))
    wait_for(lambda: len(place.count()) > 40, process=worker)

    service.send_signal(signal.SIGKILL)
    service.wait()
    time.sleep(away)
    place.serve()

    wait_for(succeeded(200), timeout=90, process=worker)
    assert set(place.count().values()) == {1}
    assert set(Task.objects.values_list("attempts", flat=True)) == {1}
    worker.terminate()
    assert worker.wait(30) == 0


def test_a_worker_that_was_killed_is_recovered_by_the_service_alone(place: Place) -> None:
    place.serve()
    enqueued(20)
    first = place.work("--ttl", "2", "--concurrency", "4", steps=10_000)
    wait_for(lambda: len(place.count()) >= 4, process=first)
    first.send_signal(signal.SIGKILL)
    first.wait()

    second = place.work("--ttl", "2", steps=1)

    wait_for(succeeded(20), timeout=60, process=second)
    assert TaskAttempt.objects.filter(outcome="lost").count() == 4


def test_a_worker_that_was_stopped_completes_nothing_too_late(place: Place) -> None:
    place.serve()
    enqueued(1)
    first = place.work("--ttl", "2", steps=100)
    wait_for(lambda: len(place.count()) == 1, process=first)
    first.pause()
    second = place.work("--ttl", "2", "--name", "second", steps=1)
    wait_for(succeeded(1), timeout=60, process=second)

    first.resume()

    wait_for(lambda: "was lost" in first.output, process=first)
    first.terminate()
    assert first.wait(30) == 0
    assert Task.objects.get().holder == "second"
    assert place.count() == {"0": 2}


def test_a_stopped_worker_returns_its_tasks(place: Place) -> None:
    place.serve()
    enqueued(4)
    worker = place.work("--stop-timeout", "6", steps=10_000)
    wait_for(lambda: len(place.count()) == 4, process=worker)

    worker.terminate()

    assert worker.wait(30) == 0
    assert set(Task.objects.values_list("status", "attempts")) == {("ready", 0)}


def test_a_copy_made_by_a_handler_ends_with_the_call_and_reports_nothing(place: Place) -> None:
    place.serve()
    codes = {"return": 0, "raise": 1}
    for name in ("jobs.fork", "jobs.fork_in_coroutine"):
        Task.objects.enqueue_many(name, [{"end": end} for end in codes], max_attempts=1)
    worker = place.work()

    wait_for(lambda: not Task.objects.filter(processed_at=None).exists(), process=worker)
    worker.terminate()

    assert worker.wait(30) == 0
    rows = Task.objects.order_by("pk").values_list("status", "task_output")
    assert list(rows) == [("succeeded", code) for code in codes.values()] * 2
    assert worker.output.count("the handler forked") == 4


def test_a_worker_that_waits_for_tasks_stops_at_once(place: Place) -> None:
    place.serve()
    enqueued(1)
    worker = place.work("--wait", "30", steps=0)
    wait_for(succeeded(1), timeout=60, process=worker)

    worker.terminate()

    assert worker.wait(15) == 0


def test_what_is_wrong_is_said_at_once(place: Place, tmp_path: Path) -> None:
    place.serve()
    (tmp_path / "token").write_text("leasing_wrong")

    worker = place.work()

    assert worker.wait(60) == 1
    assert "AccessDenied: http://127.0.0.1" in worker.output
    assert "Traceback" not in worker.output
