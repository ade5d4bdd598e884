"""Workers under those who start them: a service manager, a container, and a process manager in a
terminal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tasks.models import AttemptOutcome, Task, TaskStatus, Worker
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.races.support import begins, let_go, waiting
from tests.tasks.support import attempts, row_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
]

COMMAND = ["manage.py", "run_worker", "--skip-checks", "--ttl", "30", "--threads", "2"]
PARENT = [*COMMAND, "--workers", "2", "--name", "web"]
PATIENCE = 60.0


def family(pid: int) -> list[int]:
    """The processes that this one has started, and those that these have, and so on."""
    found, parents = [], _parents()
    for each in [pid]:
        found.append(each)
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def _parents() -> dict[int, int]:
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    return parents


def state(pid: int) -> str:
    """The letter of the state of a process, Z once it has ended and is not reaped; empty once it is
    gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    return state(pid) in ("", "Z")


def tell(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; the first to hear of it may have ended the others."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def serving(process: Process, count: int = 2) -> list[Worker]:
    """The workers below the parent that have registered and not stopped, once there are so many."""

    def present() -> list[Worker]:
        found = list(Worker.objects.present().order_by("fleet_index"))
        return found if len(found) == count else []

    return wait_for(present, timeout=PATIENCE, process=process)


class Unit:
    """A service as systemd keeps it, with Restart=on-failure and RestartPreventExitStatus=2."""

    def __init__(self, spawn: Spawn, args: list[str]) -> None:
        self._spawn, self._args = spawn, args
        self.codes: list[int] = []
        self.main = spawn(args)

    def look(self) -> bool:
        """Start the main process again if it has failed. Return True if it has ended for good."""
        code = self.main.poll()
        if code is None:
            return False
        self.codes.append(code)
        if code in (0, 2):
            return True
        tell(family(self.main.pid), signal.SIGKILL)
        self.main = self._spawn(self._args)
        return False

    def stop(self) -> int:
        """As ``systemctl stop``: SIGTERM to every process of the unit."""
        everyone = [self.main.pid, *family(self.main.pid)]
        tell(everyone, signal.SIGTERM)
        code = self.main.wait(PATIENCE)
        wait_for(lambda: all(map(is_gone, everyone)))
        return code


def test_a_service_manager_starts_it_stops_all_of_its_processes_and_gets_0(
    spawn_cold: Spawn, tmp_path: Path
) -> None:
    unit = Unit(spawn_cold, PARENT)
    assert [each.fleet_index for each in serving(unit.main)] == [1, 2]
    (tmp_path / "polite").touch()
    task = waiting(tmp_path)
    begins(tmp_path, 1)

    assert unit.stop() == 0
    assert unit.look() and unit.codes == [0]
    row = row_of(task)
    assert (row["status"], row["attempts"]) == (TaskStatus.SUCCEEDED, 1)
    assert not Worker.objects.filter(stopped_at=None).exists()


def test_a_service_manager_starts_again_what_was_killed_and_its_workers_have_wound_up(
    spawn_cold: Spawn, tmp_path: Path
) -> None:
    unit = Unit(spawn_cold, PARENT)
    before = serving(unit.main)
    (tmp_path / "polite").touch()
    task = waiting(tmp_path)
    begins(tmp_path, 1)

    unit.main.kill()
    # Nobody tells them but the channel to their parent.
    wait_for(lambda: all(is_gone(each.pid) for each in before), timeout=PATIENCE)
    assert row_of(task)["status"] == TaskStatus.SUCCEEDED
    wait_for(lambda: unit.look() or unit.codes, timeout=PATIENCE)
    assert unit.codes == [-signal.SIGKILL]
    after = serving(unit.main)
    assert not {each.name for each in before} & {each.name for each in after}
    assert unit.stop() == 0


def test_a_service_manager_is_told_what_to_start_again(spawn_cold: Spawn) -> None:
    unit = Unit(spawn_cold, [*COMMAND, "--nonsense"])
    wait_for(unit.look, timeout=PATIENCE)
    assert unit.codes == [2]  # not again

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failing = spawn_cold([*PARENT, "--metrics-port", str(port - 1)])
        assert failing.wait(PATIENCE) == 1  # its second worker never starts
    assert f"port {port}: Address already in use" in failing.output
    assert spawn_cold([*COMMAND, "--workers", "none"]).wait(PATIENCE) == 1


def test_a_worker_that_has_grown_is_replaced_by_its_parent_and_alone_ends_with_0(
    spawn_cold: Spawn,
) -> None:
    limit = ["--max-memory", "300"]
    parent = spawn_cold([*COMMAND, "--workers", "1", "--name", "web", *limit])
    (before,) = serving(parent, 1)
    task = Task.objects.enqueue("jobs.leak", {"mib": 300})
    wait_for(lambda: is_gone(before.pid), timeout=PATIENCE, process=parent)
    (after,) = serving(parent, 1)

    # Its row went as its successor registered.
    assert (after.fleet_restarts, " died: " in parent.output) == (1, False)
    row = row_of(task)
    assert (row["status"], row["attempts"]) == (TaskStatus.SUCCEEDED, 1)
    parent.terminate()
    assert parent.wait(PATIENCE) == 0

    alone = spawn_cold([*COMMAND, *limit])
    Task.objects.enqueue("jobs.leak", {"mib": 300})
    assert alone.wait(PATIENCE) == 0


def test_the_probes_of_a_parent_tell_how_its_workers_are(spawn_cold: Spawn, tmp_path: Path) -> None:
    path = tmp_path / "health"
    parent = spawn_cold([*PARENT, "--health-port", "0", "--health-file", str(path)])

    def probe(name: str) -> str:
        said = re.search(r"http://127.0.0.1:(\d+)/livez", parent.output)
        if said is None:
            return ""
        try:
            with urlopen(f"http://127.0.0.1:{said[1]}/{name}", timeout=20) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return str(error.read().decode())

    wait_for(lambda: probe("readyz") == "ok\n", timeout=PATIENCE, process=parent)
    os.utime(path, (0, 0))
    wait_for(lambda: path.stat().st_mtime, timeout=PATIENCE, process=parent)
    first = serving(parent)[0]
    os.kill(first.pid, signal.SIGKILL)
    wait_for(
        lambda: probe("readyz").startswith(("Worker 1: Starting", "Worker 1: Restarting")),
        timeout=PATIENCE,
    )
    assert probe("livez") == "ok\n"
    wait_for(lambda: probe("readyz") == "ok\n", timeout=PATIENCE, process=parent)
    parent.terminate()
    assert parent.wait(PATIENCE) == 0


# A container


class Container(Process):
    """A process that is the first of a pid namespace of its own."""

    def __init__(self, args: list[str], env: dict[str, str], log: Path) -> None:
        super().__init__(args, env, log, program=[*UNSHARE, sys.executable])

    @property
    def first(self) -> int:
        """The process that is 1 in there, by its pid out here."""
        return wait_for(lambda: family(self.pid)[:1], process=self)[0]


UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _why_not() -> str:
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


@pytest.fixture
def contain(process_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Container]]:
    if why := _why_not():
        pytest.skip(f"no pid namespace here: {why}")
    made: list[Container] = []

    def start(args: list[str]) -> Container:
        made.append(Container(args, process_env, tmp_path / f"container-{len(made)}.log"))
        return made[-1]

    yield start
    for each in made:
        if each.poll() is None:
            each.kill()  # and all in there with it
            each.wait(PATIENCE)
        print(f"--- {each.name}, ended {each.returncode}\n{each.output}")


def test_as_the_first_process_of_a_container_it_reaps_replaces_and_stops(
    contain: Callable[..., Container], tmp_path: Path
) -> None:
    container = contain([*PARENT, "--stop-timeout", "0.5"])
    serving(container)
    for _ in range(2):
        Task.objects.enqueue("jobs.compute", {"do": "ignore", "folder": str(tmp_path)})
    wait_for((tmp_path / "began").exists, timeout=PATIENCE, process=container)
    inside = family(container.first)
    child = next(each for each in inside if len(family(each)) > 0)
    left_behind = family(child)

    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not any(map(state, [child, *left_behind])), timeout=PATIENCE)
    serving(container)
    assert not [each for each in family(container.first) if state(each) == "Z"]

    os.kill(container.first, signal.SIGTERM)
    assert container.wait(PATIENCE) == 0


def test_a_container_whose_worker_is_killed_loses_what_had_begun_and_nothing_else(
    contain: Callable[..., Container], tmp_path: Path
) -> None:
    container = contain(PARENT)
    serving(container)
    task = waiting(tmp_path)
    begins(tmp_path, 1)
    holder = row_of(task)["holder"]
    index = Worker.objects.get(name=holder).fleet_index
    # Children are born in their order, and pids out here follow it.
    child = sorted(family(container.first)[:2])[(index or 1) - 1]

    os.kill(child, signal.SIGKILL)
    begins(tmp_path, 2)  # long before the end of the lease
    let_go(tmp_path, 2)
    wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED, timeout=PATIENCE)
    assert attempts(task) == [(1, AttemptOutcome.LOST)]
    os.kill(container.first, signal.SIGTERM)
    assert container.wait(PATIENCE) == 0


# A terminal


def test_ctrl_c_in_a_terminal_reaches_the_whole_group_and_stops_it_once(
    spawn_cold: Spawn, tmp_path: Path
) -> None:
    group = spawn_cold(PARENT)
    serving(group)
    (tmp_path / "polite").touch()
    task = waiting(tmp_path)
    begins(tmp_path, 1)

    os.killpg(group.pid, signal.SIGINT)
    assert group.wait(PATIENCE) == 0
    row = row_of(task)
    assert (row["status"], row["attempts"]) == (TaskStatus.SUCCEEDED, 1)
    assert "Traceback" not in group.output


def test_a_second_ctrl_c_gives_back_what_runs_and_spends_no_attempt(
    spawn_cold: Spawn, tmp_path: Path
) -> None:
    group = spawn_cold(PARENT)
    children = serving(group)
    task = waiting(tmp_path)
    begins(tmp_path, 1)

    os.killpg(group.pid, signal.SIGINT)
    wait_for(lambda: group.output.count("stopping; tasks still running") == 2, process=group)
    assert row_of(task)["status"] == TaskStatus.RUNNING
    os.killpg(group.pid, signal.SIGINT)
    assert group.wait(PATIENCE) == 0
    row = row_of(task)
    assert (row["status"], row["attempts"]) == (TaskStatus.READY, 0)
    assert all(is_gone(each.pid) for each in children)
