"""``workers check NAME`` as a supervisor runs it: a process, of which the exit code counts."""

from __future__ import annotations

import os
import signal

import pytest

from tasks.models import Worker
from tests.conftest import Spawn
from tests.factories import make_worker
from tests.processes import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PATIENCE = 60.0


@pytest.mark.parametrize(("state", "code"), [("live", 0), ("late", 1), ("gone", 1)])
def test_a_check_of_a_worker_is_a_probe_by_its_exit_code(
    spawn: Spawn, state: str, code: int
) -> None:
    make_worker(name="web-1", state=state)

    probe = spawn(["manage.py", "workers", "check", "web-1"])

    assert probe.wait(PATIENCE) == code
    assert probe.output.startswith(f"web-1 is {state}, seen ")


def test_a_check_by_the_name_of_a_parent_follows_the_death_of_its_worker(spawn: Spawn) -> None:
    parent = spawn(["manage.py", "run_worker", "--skip-checks", "--name", "web"])
    wait_for(Worker.objects.present().exists, timeout=PATIENCE, process=parent)
    check = ["manage.py", "workers", "check", "web"]
    alive = spawn(check)
    assert alive.wait(PATIENCE) == 0, alive.output
    first = Worker.objects.present().get()

    os.kill(first.pid, signal.SIGKILL)
    present = Worker.objects.present().exclude(pk=first.pk)
    wait_for(present.exists, timeout=PATIENCE, process=parent)

    replaced = spawn(check)
    assert replaced.wait(PATIENCE) == 0, replaced.output
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output
    stopped = spawn(check)
    assert stopped.wait(PATIENCE) == 1, stopped.output
