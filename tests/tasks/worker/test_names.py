"""One live process has the name of a worker."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from leasing.functions import DbNow, after
from tasks.exceptions import NameTaken
from tasks.models import Worker, WorkerQuerySet
from tasks.runtime.process_identity import own_identity
from tasks.worker.process import WorkerProcess
from tasks.worker.registration import Presence
from tests.conftest import Spawn
from tests.factories import make_worker
from tests.leasing.support import FakeClock
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.runtime.test_process_identity import identity_of, with_part
from tests.tasks.support import around
from tests.tasks.workers import ended, patient, working

pytestmark = pytest.mark.django_db(transaction=True)

Row = Callable[..., Worker]


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def running(other: subprocess.Popen[bytes]) -> Row:
    """Make the row of a process of this host that runs."""
    columns: dict[str, Any] = {"name": "ann", "pid": other.pid, "process": identity_of(other.pid)}
    return lambda **more: make_worker(**columns | more)


def killed(**columns: Any) -> Worker:
    """The row of a process of this host that was killed a moment ago."""
    ended_process = subprocess.Popen(["true"])
    identity = with_part(own_identity(), 1, "1")
    ended_process.wait()
    return worker_row(pid=ended_process.pid, process=identity, **columns)


def elsewhere(**columns: Any) -> Worker:
    """The row of a process of another host."""
    return worker_row(process="another-boot:1|1|1", **columns)


def worker_row(**columns: Any) -> Worker:
    worker = make_worker(**{"name": "ann"} | columns)
    return worker


class Stopping(threading.Event):
    """Calls ``happens`` when it is waited for, in place of the time that would pass."""

    def __init__(self, happens: Callable[[], object] = lambda: pytest.fail("it waits")) -> None:
        super().__init__()
        self._happens = happens
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        assert self.waits < 10
        self._happens()
        return self.is_set()


def begin(stopping: threading.Event | None = None) -> bool:
    return Presence("ann", queues=["default"], slots={}).begin(stopping or Stopping())


def begin_below(fleet: str, stopping: threading.Event | None = None) -> bool:
    """Register as the first worker of a parent."""
    columns: dict[str, Any] = {"fleet": fleet, "fleet_index": 1, "fleet_restarts": 0}
    named = Presence(f"{fleet}:1:new", queues=["default"], slots={}, **columns)
    return named.begin(stopping or Stopping())


def has_it() -> bool:
    row = Worker.objects.get()
    return row.process == own_identity() and row.stopped_at is None


@pytest.mark.parametrize("state", ["live", "late", "gone"])
def test_a_process_of_this_host_that_runs_keeps_its_name(running: Row, state: str) -> None:
    row = running(state=state)
    before = Worker.objects.values().get()

    with pytest.raises(NameTaken) as refusal:
        begin()

    assert str(refusal.value) == (
        f"A running process of this host (pid {row.pid}) has the name ann: stop it, or give this "
        "one another name (--name)."
    )
    assert Worker.objects.values().get() == before


@pytest.mark.parametrize(
    "make",
    [
        killed,
        lambda: elsewhere(state="gone"),
        lambda: elsewhere(state="stopped"),
        lambda: worker_row(state="gone"),
        lambda: worker_row(process=own_identity()),
        lambda: None,
    ],
    ids=["killed", "gone", "stopped", "unknown and gone", "own", "new"],
)
def test_a_name_that_nobody_uses_is_taken_at_once(make: Callable[[], object]) -> None:
    make()

    assert begin() and has_it()


def test_the_name_of_a_process_elsewhere_is_waited_for_until_that_is_gone(caplog: Any) -> None:
    """A pod that moves to another node keeps its name."""
    elsewhere(pid=7, hostname="node-1")
    ages = iter([timedelta(seconds=14), timedelta(seconds=29), timedelta(seconds=31)])
    stopping = Stopping(lambda: Worker.objects.update(last_seen_at=after(-next(ages))))

    assert begin(stopping) and has_it()

    assert stopping.waits == 3
    assert logged(caplog, pid=7, hostname="node-1") == ["worker.waits"]


def test_a_stop_ends_the_wait() -> None:
    elsewhere()
    before = Worker.objects.values().get()
    stopping = Stopping(lambda: stopping.set())

    assert not begin(stopping)
    assert Worker.objects.values().get() == before


@pytest.mark.parametrize("make", [killed, lambda: None], ids=["killed", "new"])
def test_of_two_that_start_at_the_same_time_one_has_the_name(
    make: Callable[[], object], other: subprocess.Popen[bytes]
) -> None:
    make()
    starts: list[str] = []

    def after_another(register: Callable[..., bool], name: str, **what: Any) -> bool:
        """The other has looked at the same row, and is faster."""
        if not starts:
            starts.append(name)
            faster = {"pid": other.pid, "process": identity_of(other.pid)}
            assert register(name, **what | faster)
        return register(name, **what)

    with around("register", after_another, of=WorkerQuerySet), pytest.raises(NameTaken):
        begin()
    assert Worker.objects.get().pid == other.pid


def test_who_has_lost_the_name_writes_nothing_to_the_row() -> None:
    elsewhere(state="late")
    before = Worker.objects.values().get()

    assert Worker.objects.seen("ann", process=own_identity(), blocked={"thread": 1}) == 0
    assert Worker.objects.sign_off("ann", process=own_identity()) == 0
    assert Worker.objects.values().get() == before


def test_a_worker_whose_name_another_took_while_it_was_silent_stops(caplog: Any) -> None:
    """It was suspended, or could not reach the database, for longer than it counts as present."""
    with working(name="ann", timing=patient(seen_every=0.02)) as worker:
        wait_for(Worker.objects.filter(name="ann", stopped_at=None).exists)
        Worker.objects.update(process="another-boot:1|1|1", hostname="node-2", pid=8)
        wait_for(ended(worker))

    assert str(worker.name_taken).startswith("A running process of node-2 (pid 8) has the name ann")
    assert "worker.name_taken" in logged(caplog)
    row = Worker.objects.get()
    assert (row.hostname, row.stopped_at) == ("node-2", None)


@pytest.mark.parametrize("command", ["run_worker", "run_generator"])
def test_a_command_whose_name_is_taken_meanwhile_exits_with_code_2(command: str) -> None:
    """A process that was silent for long, and one elsewhere that started under its name."""

    def after_another(seen: Callable[..., int], *args: Any, **news: Any) -> int:
        Worker.objects.update(process="another-boot:1|1|1", hostname="node-2", pid=8)
        return seen(*args, **news)

    taken = pytest.raises(CommandError, match=r"node-2 \(pid 8\) has the name ann")
    with around("seen", after_another, of=WorkerQuerySet), taken as refusal:
        call_command(command, "--name", "ann", verbosity=0)

    assert refusal.value.returncode == 2
    assert Worker.objects.get().stopped_at is None


def test_a_process_whose_row_was_deleted_keeps_its_start(holder_clock: FakeClock) -> None:
    presence = Presence("ann")
    assert presence.begin(Stopping())
    started_at = Worker.objects.get().started_at
    Worker.objects.all().delete()
    holder_clock.advance(3600)

    presence.service().step()

    again = Worker.objects.get()
    assert started_at - timedelta(hours=1, seconds=1) < again.started_at < started_at


def test_a_process_that_registers_again_keeps_its_start() -> None:
    """Workers of one process share their row."""
    for _ in range(2):
        assert Presence("ann").begin(Stopping())
        Worker.objects.update(started_at=after(timedelta(hours=-1)))
    assert Presence("ann").begin(Stopping())
    assert Worker.objects.get().started_at < timezone.now() - timedelta(minutes=59)

    Worker.objects.sign_off("ann", process=own_identity())
    assert Presence("ann").begin(Stopping())
    assert Worker.objects.get().started_at > timezone.now() - timedelta(minutes=1)


def test_workers_of_one_process_share_a_name() -> None:
    one, two = Presence("ann"), Presence("ann")
    assert one.begin(Stopping()) and two.begin(Stopping())
    for each in (one, two):
        each.service().step()
    close = one.service().close
    assert close is not None
    close()
    two.service().step()

    assert has_it()


@pytest.mark.parametrize("command", ["run_worker", "run_generator"])
def test_a_command_whose_name_is_taken_exits_with_code_2(running: Row, command: str) -> None:
    running()

    with pytest.raises(CommandError, match="has the name ann") as refusal:
        call_command(command, "--name", "ann", stderr=StringIO())

    assert refusal.value.returncode == 2


def test_a_worker_that_was_killed_starts_again_at_once(spawn: Spawn) -> None:
    arguments = ["manage.py", "run_worker", "--workers", "0", "--name", "ann"]
    first = spawn(arguments)
    wait_for(Worker.objects.filter(name="ann").exists, process=first)
    second = spawn(arguments)
    assert second.wait(60) == 2
    assert f"pid {first.pid}" in second.output and "Traceback" not in second.output

    first.kill()
    first.wait()
    third = spawn(arguments)
    wait_for(Worker.objects.filter(name="ann", pid=third.pid).exists, process=third)


def test_a_parent_whose_name_another_one_has_is_refused(
    running: Row, other: subprocess.Popen[bytes]
) -> None:
    running(name="web:1:old", fleet="web", fleet_index=1)

    with pytest.raises(NameTaken, match=rf"\(pid {other.pid}\) has the name web: stop it"):
        begin_below("web")

    assert Worker.objects.count() == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"fleet": "web", "fleet_index": 2},
        {"fleet": "mail", "fleet_index": 1},
        {"fleet": "web", "fleet_index": 1, "state": "stopped"},
        {},
    ],
)
def test_the_name_of_a_parent_is_free_unless_a_worker_of_that_number_lives(
    running: Row, columns: dict[str, Any]
) -> None:
    running(name="web:1:old", **columns)

    assert begin_below("web")


def test_a_parent_waits_for_the_workers_of_another_host_until_they_stop() -> None:
    row = elsewhere(name="web:1:old", fleet="web", fleet_index=1)
    stopping = Stopping(lambda: Worker.objects.sign_off(row.name, process=row.process))

    assert begin_below("web", stopping)
    assert stopping.waits == 1


def test_a_worker_whose_parent_is_gone_frees_its_name(running: Row) -> None:
    running(name="web:1:old", fleet="web", fleet_index=1)

    beside = running(name="web:2:old", fleet="web", fleet_index=2)

    WorkerProcess(name="web:1:old").leave_fleet()

    assert begin_below("web")
    beside.refresh_from_db()
    assert (beside.fleet, beside.fleet_index) == ("web", 2)


# What a successor knows of the processes before it


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (killed, "ended without signing off"),
        (lambda: elsewhere(state="gone"), "ended without signing off"),
        (lambda: elsewhere(state="stopped"), "stopped cleanly"),
    ],
    ids=["killed", "gone", "stopped"],
)
def test_a_restarted_worker_knows_the_end_of_the_process_before_it(
    make: Callable[[], Worker], how: str
) -> None:
    before = make()

    assert begin()

    (end,) = Worker.objects.get().former_ends
    assert (end.pid, end.started_at, end.how) == (before.pid, before.started_at, how)
    assert end.at == (before.stopped_at or before.last_seen_at)


def test_the_latest_ends_of_a_name_are_known() -> None:
    killed()
    pids = []
    for number in range(Worker.ENDS_KEPT + 2):
        assert begin()
        pids.append(number)
        Worker.objects.update(pid=number, process=f"boot:{number}|1|1", stopped_at=DbNow())

    assert begin()

    assert [end.pid for end in Worker.objects.get().former_ends] == pids[:1:-1]


def test_a_child_knows_the_ends_of_those_that_had_its_number_also_below_an_earlier_parent() -> None:
    for name in ("web:1:a", "web:1:b", "web:2:c"):
        index = int(name.split(":")[1])
        make_worker(name=name, fleet="web", fleet_index=index, fleet_restarts=0)
    Worker.objects.sign_off_dead("web:1:a", "was killed by signal 9")
    # SQLite's clock has milliseconds: two ends in one of them would be in no order.
    Worker.objects.filter(name="web:1:a").update(stopped_at=after(-timedelta(seconds=1)))
    Worker.objects.leave_fleet("web:1:b")
    Worker.objects.sign_off("web:1:b")

    assert begin_below("web")

    ends = Worker.objects.get(name="web:1:new").former_ends
    assert [end.how for end in ends] == ["stopped cleanly", "was killed by signal 9"]
    assert set(Worker.objects.values_list("name", flat=True)) == {"web:1:new", "web:2:c"}
