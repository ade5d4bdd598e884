"""The demo, started as ``make demo`` starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from leasing.models import AuditEntry, LeaseEvent
from project.bakery.models import Oven
from project.two_services import two_services
from tasks.models import Task
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.plugin import ROOT
from tests.processes import wait_for
from tests.tutorial import read_scenario


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def label_of(name: str) -> str:
    return name.rpartition(":")[0]


def workers_that_completed() -> set[str]:
    """Return their labels."""
    return set(map(label_of, Task.objects.succeeded().values_list("holder", flat=True)))


@pytest.mark.slow
@pytest.mark.long
def test_the_demo_shows_all_workers_at_work_and_stops_cleanly(spawn: Spawn, port: int) -> None:
    demo = spawn(["manage.py", "demo"], PORT=str(port), PYTHONWARNINGS="default")

    crew = {"worker-1", "worker-2", "fleet-1:1", "fleet-1:2"}
    wait_for(lambda: workers_that_completed() == crew, timeout=90)

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            content: bytes = answer.read()
            return content

    ledger = LeaseEvent.objects.filter(resource__startswith="bakery.")
    wanted = {
        *(("bakery.report:daily", "acquired"), ("bakery.oven:1", "refused")),
        *(("bakery.printer", "preempted"), ("bakery.printer", "acquired")),
    }
    wait_for(lambda: wanted <= {*ledger.values_list("resource", "kind")}, timeout=90)
    shapes = {"bakery.receipt", "bakery.bake", "bakery.charge", "bakery.count"}
    succeeded = Task.objects.succeeded()
    wait_for(lambda: shapes <= {*succeeded.values_list("name", flat=True)}, timeout=90)
    assert Oven.objects.get().loaves > 0
    leases = json.loads(get("/api/leases/active"))["leases"]
    assert any(lease["resource"] == "leasing_tasks.generator" for lease in leases)
    password = re.search(r"Sign in as demo with the password (\S+)", demo.output)
    assert password is not None
    assert get_user_model()._default_manager.get(username="demo").check_password(password[1])
    assert b"csrfmiddlewaretoken" in get("/ops/login/")

    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=30) == 0
    assert "stopped" in demo.output.splitlines()[-1]


@pytest.mark.slow
def test_the_demo_over_celery_runs_its_tasks_in_both_workers_without_a_server(
    spawn: Spawn, port: int, tmp_path: Path
) -> None:
    demo = spawn(
        ["manage.py", "demo", "--engine", "celery"],
        PORT=str(port),
        DJANGO_SETTINGS_MODULE="project.settings",
        PYTHONWARNINGS="default",
        CELERY_FOLDER=str(tmp_path / "celery"),
    )

    both = {"worker-1@demo", "worker-2@demo"}
    wait_for(lambda: workers_that_completed() == both, timeout=90, process=demo)

    assert not Task.objects.succeeded().filter(published_at=None).exists()
    paused = AuditEntry.objects.get()
    assert (paused.by, paused.verb, paused.key) == ("demo", "pause", "reports")
    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=30) == 0


@pytest.mark.slow
def test_the_demo_of_two_services_shows_each_its_part_and_stops_cleanly(
    spawn: Spawn, tmp_path: Path
) -> None:
    port = next(first for first in free_ports(20) if is_free(first + 1))
    files = {name: tmp_path / f"{name}.sqlite3" for name in ("leases", "tasks")}
    databases = {
        f"{name.upper()}_DATABASE_URL": f"sqlite:///{file}" for name, file in files.items()
    }
    demo = spawn(
        ["manage.py", "demo", "--services", "2"],
        DJANGO_SETTINGS_MODULE="project.settings",
        PORT=str(port),
        PYTHONWARNINGS="default",
        **databases,
    )

    def get(number: int, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port + number}{path}", timeout=10) as got:
            content: dict[str, Any] = json.loads(got.read())
            return content

    def read(service: str, query: str) -> list[Any]:
        with closing(sqlite3.connect(files[service])) as database:
            return database.execute(query).fetchall()

    def completed_by() -> set[str]:
        succeeded = "SELECT DISTINCT holder FROM leasing_tasks_task WHERE status = 'succeeded'"
        try:
            return {holder for (holder,) in read("tasks", succeeded)}
        except sqlite3.OperationalError:  # there is no table yet
            return set()

    wait_for(lambda: completed_by() == {"remote-1"}, timeout=90, process=demo)

    (lease,) = get(0, "/api/leases/active")["leases"]
    assert lease["resource"] == "demo.generator"
    ((holder,),) = read("leases", "SELECT holder FROM leasing_lease")
    assert label_of(holder) in ("generator-1", "generator-2")
    assert get(1, "/api/generator/status")["status"] == "RUNNING"
    assert not read("tasks", "SELECT 1 FROM leasing_lease WHERE resource LIKE '%generator%'")
    assert demo.output.count("started (pid ") == 6
    sampling = "SELECT 1 FROM leasing_lease WHERE resource = 'leasing_tasks.sampling'"
    wait_for(lambda: read("tasks", sampling), process=demo)
    password = re.search(r"Sign in to each as demo with the password (\S+)", demo.output)
    assert password is not None

    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=40) == 0
    assert "stopped" in demo.output.splitlines()[-1]
    assert demo.output.count("Traceback") == 1, "of the sample that fails"
    for service in files:
        assert read(service, "SELECT count(*), count(revoked_at) FROM leasing_apitoken") == [(1, 1)]
    (released,) = read("leases", "SELECT released_at FROM leasing_lease")
    assert released[0] is not None


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"DATABASE_URL": "sqlite:////tmp/one.sqlite3"}, "not DATABASE_URL"),
        (dict.fromkeys(("LEASES_DATABASE_URL", "TASKS_DATABASE_URL"), "sqlite:////x"), "its own"),
    ],
)
def test_two_services_on_one_database_are_refused(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], complaint: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(CommandError, match=complaint):
        two_services(8000)


def is_free(port: int) -> bool:
    """Return True if nobody listens at ``port``."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
def test_the_scenario_is_played_as_the_tutorial_shows_it() -> None:
    played = subprocess.run(
        [sys.executable, "manage.py", "demo", "--scenario", "abc"],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (played.returncode, played.stderr) == (0, "")
    assert plot_of(played.stdout) == plot_of(read_scenario())


def plot_of(output: str) -> list[str]:
    """Return the story and the events of the traces, without what differs from run to run."""
    story = [line for line in output.splitlines() if line.startswith("story")]
    rows = re.findall(r"^20\S+ \S+ +\S+ s +(\w+) +(\d?)", output, re.MULTILINE)
    # How often a lease was renewed depends on the machine.
    events = [" ".join(row) for row in rows if row[0] != "renewed"]
    return [*(re.sub(r"worker-\d:[0-9a-f]{8}", "worker", line) for line in story), *events]


def test_another_scenario_is_refused() -> None:
    with pytest.raises(CommandError, match="invalid choice: 'xyz'"):
        call_command("demo", "--scenario", "xyz")
