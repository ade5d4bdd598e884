"""A run ends in time, says what is wrong with its processes and servers, and leaves none behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.brokers import free_ports
from tests.chaos.faked import LIBRARIES, wall_clock
from tests.chaos.history import CLOCK, read_histories
from tests.chaos.sabotage import SABOTAGES, Sabotage, sabotaged
from tests.chaos.servers import PGBOUNCER, pgbouncer
from tests.chaos.workload import Actor, Run, website
from tests.chaos.world import GAVE_UP, World
from tests.plugin import ROOT
from tests.postgres import NoServer
from tests.processes import wait_for
from tests.proxy import TcpProxy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    port, bind = free_ports(2)
    servers = {"bind": f"127.0.0.1:{bind}"}
    run = Run(1, 1.0, "sqlite", f"sqlite:///{tmp_path}/db", tmp_path, servers)
    with closing(TcpProxy(port)) as web, closing(World(run, "db", None, web, {})) as world:
        yield world


def test_a_process_that_hangs_at_the_end_is_named_and_killed(world: World) -> None:
    code = "import signal, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(60)"
    world.start(Actor("deaf", ["-c", code]))
    (deaf,) = world.crew
    wait_for(lambda: "deaf" in deaf.process.output)
    world.stop_timeout = 0.2

    world.stop(lasting=False)

    (violation,) = world.violations
    assert violation.rule == "a process hangs at the end"
    assert violation.message.startswith("deaf did not stop within 0.2 s")
    assert deaf.process.poll() is not None


def test_a_process_that_ends_by_itself_is_named_and_started_again(world: World) -> None:
    world.start(Actor("short", ["-c", "print('no more'); raise SystemExit(3)"]))

    def again() -> bool:
        world.look()
        return len(world.crew) > 1

    wait_for(again)

    assert world.violations[0].rule == "a process ended by itself"
    assert world.violations[0].message == "short ended with 3:\nno more\n"


@pytest.mark.parametrize(("ago", "is_named"), [(1.0, False), (60.0, True)])
def test_a_worker_that_gives_up_is_named_unless_there_was_a_fault_just_before(
    ago: float, is_named: bool, world: World
) -> None:
    world.hit_at = time.monotonic() - ago
    world.start(Actor("worker", ["-c", f"raise SystemExit({GAVE_UP!r})"]))

    def again() -> bool:
        world.look()
        return len(world.crew) > 1

    wait_for(again)

    assert [each.rule for each in world.violations] == ["a process ended by itself"] * is_named


def test_a_process_that_was_killed_is_started_again(world: World) -> None:
    world.start(Actor("long", ["-c", "import time; time.sleep(60)"]))
    (first,) = world.crew
    assert world.kill(first, [first.pid]) == 1

    def again() -> bool:
        world.look()
        return world.crew[-1] is not first

    wait_for(again)

    assert world.violations == []


@pytest.mark.slow
def test_a_web_server_whose_port_is_taken_is_named(world: World) -> None:
    bind = world.run.servers["bind"]
    with socket.create_server(("127.0.0.1", int(bind.rpartition(":")[2]))):
        world.start(website(world.run))

        def named() -> bool:
            world.look()
            return bool(world.violations)

        wait_for(named)

    assert world.violations[0].message.startswith("web ended with 1")
    assert "in use" in world.violations[0].message


def test_a_pooler_whose_port_is_taken_does_not_start(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    if not PGBOUNCER.exists():
        pytest.skip("no pgbouncer: install it with `apt-get install pgbouncer`")
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(NoServer, match="PgBouncer did not start"),
        pgbouncer(tmp_path, tmp_path, port),
    ):
        pass


def test_a_run_without_a_server_says_so(tmp_path: Path) -> None:
    initdb = tmp_path / "initdb"
    initdb.write_text("#!/bin/sh\necho out of disk; exit 1\n")
    initdb.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seconds", "1", "--discard"],
        cwd=ROOT,
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "chaos: not run" in done.stderr
    assert "out of disk" in done.stderr
    assert [*tmp_path.iterdir()] == [initdb]


def test_a_run_whose_time_is_over_ends() -> None:
    code = (
        "import time; from tests.chaos.__main__ import in_time\nwith in_time(0.1): time.sleep(60)"
    )
    command = [sys.executable, "-c", code]

    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=50)

    assert (done.returncode, done.stderr) == (2, "chaos: not done after 0 s\n")


@pytest.mark.skipif(not LIBRARIES, reason="no libfaketime: `apt-get install libfaketime`")
def test_a_wrong_wall_clock_leaves_the_clock_of_holders_untouched(tmp_path: Path) -> None:
    file, script = tmp_path / "clock", tmp_path / "script.py"
    file.write_text("+5h")
    script.write_text(
        "import json, time\n"
        "from tests.chaos.history import CLOCK\n"
        "began = time.clock_gettime(CLOCK)\n"
        "time.sleep(0.1)\n"
        "print(json.dumps([time.time(), began, time.clock_gettime(CLOCK)]))\n"
    )
    wall, before = time.time(), time.clock_gettime(CLOCK)

    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.faked", str(script)],
        cwd=ROOT,
        env={**os.environ, **wall_clock(file), "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )

    wrong, began, ended = json.loads(done.stdout)
    assert 5 * 3600 <= wrong - wall < 5 * 3600 + 60
    assert before < began < ended < time.clock_gettime(CLOCK)
    assert ended - began >= 0.1


def test_the_harness_records_itself(world: World) -> None:
    with world.heart():
        world.go([], 0.1)

    (clocks, *stalls, load) = read_histories(world.run.folder)
    assert clocks.name == "clocks"
    assert load.name == "load" and load.value["share"] >= 0
    assert {each.name for each in stalls} <= {"stall"}


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_a_sabotage_finds_its_text(sabotage: Sabotage) -> None:
    assert sabotaged(sabotage) != (ROOT / sabotage.file).read_text()


def test_a_sabotage_whose_text_has_changed_is_an_error() -> None:
    sabotage = next(iter(SABOTAGES.values()))

    with pytest.raises(ValueError, match="0 times in leasing/"):
        sabotaged(sabotage._replace(text="what is there no more"))
