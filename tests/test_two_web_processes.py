"""Two web processes and two generators: one truth, whichever process is asked."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from typing import Any

import pytest

from leasing.models import Lease
from tasks.models import Task
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import Process, wait_for

ROUNDS = 6


def free_port() -> int:
    return free_ports(1)[0]


def call(port: int, method: str, path: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, json.loads(answer.read())


def status_of(port: int) -> str:
    return str(call(port, "GET", "/api/generator/status")[1]["status"])


def is_running(port: int) -> bool:
    return status_of(port) == "RUNNING"


def answers(port: int) -> bool:
    try:
        return call(port, "GET", "/api/healthz")[0] == 200
    except OSError:
        return False


@pytest.fixture
def ports(spawn: Spawn) -> list[int]:
    ports = free_ports(2)
    for port in ports:
        args = ["manage.py", "runserver", "--noreload", "--skip-checks", f"127.0.0.1:{port}"]
        spawn(args, LEASING_API_ACCESS="compatible", PYTHONWARNINGS="default")
    for port in ports:
        wait_for(partial(answers, port), timeout=60)
    return ports


@pytest.fixture
def generators(spawn: Spawn) -> list[Process]:
    run = ["manage.py", "run_generator", "--rate", "50", "--ttl", "2"]
    return [spawn([*run, "--name", name]) for name in ("left", "right")]


@pytest.mark.slow
@pytest.mark.usefixtures("generators")
def test_a_stop_sent_to_either_process_stops_the_one_generator(ports: list[int]) -> None:
    for number in range(ROUNDS):
        asked, other = ports[number % 2], ports[(number + 1) % 2]
        assert call(other, "POST", "/api/generator/start")[0] == 200
        wait_for(partial(is_running, asked))

        status, answer = call(asked, "DELETE", "/api/generator/stop")
        made = Task.objects.count()

        assert status == 200
        assert answer["isRunning"] is False
        for port in ports:
            assert status_of(port) == "STOPPED"
        # The holder gives the lease back once it has seen the stop: nothing came between.
        wait_for(
            lambda: not Lease.objects.active().filter(resource="leasing_tasks.generator").exists()
        )
        assert Task.objects.count() == made
