"""The demo, started as ``make demo`` starts it."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model

from tasks.models import Task
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import wait_for

pytestmark = pytest.mark.once


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.mark.rest
def test_the_demo_shows_all_workers_at_work_and_stops_cleanly(spawn: Spawn, port: int) -> None:
    demo = spawn(["manage.py", "demo"], PORT=str(port), PYTHONWARNINGS="default")

    def workers_that_completed() -> set[str]:
        return set(Task.objects.succeeded().values_list("holder", flat=True))

    def fleets_that_completed() -> set[str]:
        """Names of all workers, without what is random in those of the parent's."""
        return {name.rpartition(":")[0] or name for name in workers_that_completed()}

    crew = {"worker-1", "worker-2", "fleet-1:1", "fleet-1:2"}
    wait_for(lambda: fleets_that_completed() == crew, timeout=90)

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            content: bytes = answer.read()
            return content

    leases = json.loads(get("/api/leases/active"))["leases"]
    assert any(lease["resource"] == "leasing_tasks.generator" for lease in leases)
    password = re.search(r"Sign in as demo with the password (\S+)", demo.output)
    assert password is not None
    assert get_user_model()._default_manager.get(username="demo").check_password(password[1])
    assert b"csrfmiddlewaretoken" in get("/login/")

    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=30) == 0
    assert "stopped" in demo.output.splitlines()[-1]


@pytest.mark.rest
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

    def workers_that_completed() -> set[str]:
        return set(Task.objects.succeeded().values_list("holder", flat=True))

    both = {"worker-1@demo", "worker-2@demo"}
    wait_for(lambda: workers_that_completed() == both, timeout=90, process=demo)

    assert not Task.objects.succeeded().filter(published_at=None).exists()
    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=30) == 0
