"""Helpers for real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from tests.conftest import Spawn
from tests.plugin import ROOT
from tests.preloaded import Preloaded
from tests.processes import BOUND, Process, Warm, wait_for

pytestmark = pytest.mark.slow

SLEEPER = "import signal, time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = Process(["-c", SLEEPER], os.environ, tmp_path / "log")
    wait_for(lambda: "up" in process.output, process=process)
    yield process
    process.end()


def test_a_process_and_its_test_share_one_database(spawn: Spawn) -> None:
    Group.objects.create(name="made by the test")
    code = (
        "import django; django.setup()\n"
        "from django.contrib.auth.models import Group\n"
        "print(Group.objects.get().name)\n"
        "Group.objects.create(name='made by the process')\n"
    )

    process = spawn(["-c", code])

    wait_for(Group.objects.filter(name="made by the process").exists, process=process)
    assert process.wait(60) == 0
    assert "made by the test" in process.output


def test_keywords_reach_the_environment_of_a_process(spawn: Spawn) -> None:
    process = spawn(["-c", "import os; print(os.environ['LEASING_TTL'])"], LEASING_TTL="2.5")

    assert process.wait(60) == 0
    assert process.output == "2.5\n"


def test_the_site_starts_without_a_warning(spawn_cold: Spawn) -> None:
    process = spawn_cold(["manage.py", "check"])

    assert process.wait(60) == 0, process.output


CODE = (
    "import os, sys, time\n"
    "print(sys.argv, __name__, os.getsid(0) == os.getpid(), sys.stdin.read())\n"
    "sys.exit('bad luck')\n"
)


def test_a_process_that_was_forked_is_as_a_new_one(
    process_env: dict[str, str], spawn_cold: Spawn, tmp_path: Path
) -> None:
    args = ["-c", CODE, "one", "two"]
    cold = spawn_cold(args)
    with closing(Preloaded(BOUND, ROOT)) as preloaded:
        assert preloaded.can_start(args, process_env)
        forked = Warm(args, process_env, tmp_path / "log", preloaded)

        assert forked.wait(60) == cold.wait(60) == 1
        assert forked.output == cold.output == "['-c', 'one', 'two'] __main__ True \nbad luck\n"


def test_a_process_that_was_forked_is_killed_paused_and_waited_for(spawn: Spawn) -> None:
    process = spawn(["-c", SLEEPER])
    wait_for(lambda: "up" in process.output, process=process)

    process.pause()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.resume()
    process.kill()

    assert process.wait(60) == process.returncode == -signal.SIGKILL


def test_a_process_that_was_forked_ends_with_the_one_it_came_from(
    process_env: dict[str, str], tmp_path: Path
) -> None:
    args, log = ["-c", SLEEPER], tmp_path / "log"
    with closing(Preloaded(BOUND, ROOT)) as preloaded:
        assert preloaded.can_start(args, process_env)
        process = Warm(args, process_env, log, preloaded)
        wait_for(lambda: "up" in process.output)

    wait_for(lambda: not is_running(process.pid))


def test_variables_of_its_own_have_a_process_start_anew(spawn: Spawn) -> None:
    process = spawn(["-c", "pass"], LEASING_TTL="2.5")

    assert type(process) is Process
    assert process.wait(60) == 0


def test_a_paused_process_ends_too(sleeper: Process) -> None:
    sleeper.pause()

    sleeper.end()

    assert sleeper.returncode is not None


def test_a_process_ends_together_with_those_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = Process(["-c", code], os.environ, tmp_path / "log")
    child = int(wait_for(lambda: parent.output.strip(), process=parent))

    parent.end()

    wait_for(lambda: not is_running(child))


def test_waiting_returns_what_it_waited_for() -> None:
    values = iter(["", "", "there"])

    assert wait_for(lambda: next(values)) == "there"


def test_waiting_in_vain_tells_what_for() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"the worker is up: .* last value 0"):
        wait_for(lambda: 0, timeout=0.05, message="the worker is up")


def test_waiting_for_a_process_that_has_ended_fails_at_once(tmp_path: Path) -> None:
    process = Process(["-c", "print('bad luck'); exit(3)"], os.environ, tmp_path / "log")

    with pytest.raises(pytest.fail.Exception, match=r"(?s)its process ended.*bad luck"):
        wait_for(lambda: False, timeout=30, process=process)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Killed, and not yet collected by init: as good as gone.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
