"""The commands about leases."""

from __future__ import annotations

import getpass
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from leasing.diagnosis.lease import explain
from leasing.functions import database_now
from leasing.holding.keeper import keeper
from leasing.management.commands import run_as_leader
from leasing.models import EventKind, Lease, LeaseEvent
from leasing.process.supervisor import KILLED, Oversight, Run
from leasing.runtime.terminal import plain
from leasing.stores import stores
from leasing.waiting.waiter import Rest
from leasing.web.badges import EVENT_BADGES
from tests.conftest import Spawn
from tests.factories import grant_id_of, make_lease
from tests.leasing.conftest import DatabaseClock
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE
from tests.test_processes import is_running

# leases list


@pytest.fixture
def all_states() -> None:
    for state in ("free", "active", "expired", "released", "revoked"):
        make_lease(resource=f"crane:{state}", holder=f"{state}-holder", state=state)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call_command("leases", *arguments)
    return capsys.readouterr().out


def explained(capsys: pytest.CaptureFixture[str]) -> Any:
    """The explanation of crane:1."""
    return printed_json(capsys, "show", "crane:1")["explanation"]


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


@pytest.mark.django_db
def test_the_list_is_a_table_in_the_order_of_names(
    capsys: pytest.CaptureFixture[str], database_clock: DatabaseClock
) -> None:
    process = {"process": "report.py@vm:12:0a1b2c3d"}
    make_lease(resource="crane:2", holder="bob", ttl=30, metadata=process)
    make_lease(resource="crane:10", holder="ann", state="expired")
    make_lease(resource="a free one", state="free")
    make_lease(resource="leasing_tasks.recovery", holder="bob", ttl=30)  # a worker's own
    lease = make_lease(resource="released", holder="cyd", state="released")
    database_clock.advance(7)

    head, *lines = printed(capsys, "list").splitlines()

    assert head.split() == ["RESOURCE", "STATE", "HOLDER", "UNTIL", "TOKEN"]
    columns = [head.index(name) for name in head.split()]
    cells = [
        [line[start:end].rstrip() for start, end in zip(columns, [*columns[1:], None], strict=True)]
        for line in lines
    ]
    token = str(lease.fencing_token)
    assert [[*row[:3], re.findall(r"\d+ s", row[3]), row[4]] for row in cells] == [
        ["a free one", "free", "", [], "0"],
        ["crane:10", "expired", "ann", ["8 s"], token],
        ["crane:2", "active", "bob (report.py, pid 12 on vm)", ["23 s"], token],
        ["released", "released", "cyd", ["7 s"], token],
        ["leasing_tasks.recovery", "active", "bob", ["23 s"], token],
    ]


@pytest.mark.django_db
def test_an_empty_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "list") == "No leases.\n"
    assert printed(capsys, "list", "--state", "expired") == "No lease is expired.\n"
    assert printed_json(capsys, "list") == []


@pytest.mark.django_db
@pytest.mark.usefixtures("all_states")
@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("free", ["crane:free"]),
        ("active", ["crane:active"]),
        ("expired", ["crane:expired"]),
        ("released", ["crane:released", "crane:revoked"]),
    ],
)
def test_the_list_of_one_state(
    capsys: pytest.CaptureFixture[str], state: str, names: list[str]
) -> None:
    found = printed_json(capsys, "list", "--state", state)

    assert [lease["resource"] for lease in found] == names
    assert {lease["state"] for lease in found} == {state}


@pytest.mark.django_db
def test_what_stands_in_json(
    capsys: pytest.CaptureFixture[str], database_clock: DatabaseClock
) -> None:
    database_clock.now = datetime(2030, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    make_lease(
        resource="crane:1", holder="ann", ttl=30, priority=3, metadata={"host": "a"}, renewals=1
    )

    (lease,) = printed_json(capsys, "list")

    assert lease == {
        "resource": "crane:1",
        "state": "active",
        "holder": "ann",
        "expires_at": "2030-01-01T12:00:30.250Z",
        "fencing_token": Lease.objects.get().fencing_token,
        "grants": 1,
        "ttl_seconds": 30.0,
        "acquired_at": "2030-01-01T12:00:00.250Z",
        "renewed_at": "2030-01-01T12:00:00.250Z",
        "renewals": 1,
        "released_at": None,
        "priority": 3,
        "yield_to": "",
        "metadata": {"host": "a"},
    }


@pytest.mark.django_db
def test_the_proof_of_a_term_is_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    lease = make_lease(resource="crane:1")
    asked = [["list"], ["list", "--json"], ["show", "crane:1"], ["show", "crane:1", "--json"]]

    for arguments in asked:
        text = printed(capsys, *arguments)
        assert str(lease.grant_id) not in text
        assert grant_id_of(lease).hex not in text


@pytest.mark.django_db
def test_a_free_lease_never_had_a_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    make_lease(resource="crane:1", state="free")

    assert printed_json(capsys, "show", "crane:1")["expires_at"] is None
    assert explained(capsys)["code"] == "free"
    lease = Lease.objects.get()
    assert explain(lease, database_now("default")).headline in printed(capsys, "show", "crane:1")


# leases show


@pytest.mark.django_db
def test_one_lease_is_explained_with_what_happened_to_it(
    capsys: pytest.CaptureFixture[str], database_clock: DatabaseClock
) -> None:
    make_lease(resource="crane:2", holder="eve")
    make_lease(resource="crane:1", holder="ann", ttl=30)
    database_clock.advance(5)
    Lease.objects.filter(resource="crane:1").revoke("it burns", "root")

    lines = printed(capsys, "show", "crane:1").splitlines()

    reported = explained(capsys)
    assert lines[:2] == [f"crane:1: {reported['headline']}", reported["next"]]
    assert reported["code"] == "released"
    assert all(word in reported["headline"] for word in ("ann", "root", "it burns"))
    facts = dict(line.split(maxsplit=1) for line in lines[2 : lines.index("")])
    assert facts["state"] == "released"
    assert facts["released_at"] == facts["expires_at"] == "2030-01-01 00:00:05 UTC"
    assert [line.split("  ", 1)[1].split() for line in lines[lines.index("") + 1 :]] == [
        [EVENT_BADGES[EventKind.REVOKED].word, "ann", "by", "root", "it", "burns"],
        [EVENT_BADGES[EventKind.ACQUIRED].word, "ann"],
    ]


@pytest.mark.django_db
def test_the_latest_ten_events_are_shown_newest_first(capsys: pytest.CaptureFixture[str]) -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    for number in range(12):
        Lease.objects.record("refused", lease, reason=str(number))

    found = printed_json(capsys, "show", "crane:1")["events"]
    assert [event["reason"] for event in found] == [str(n) for n in range(11, 1, -1)]
    assert set(found[0]) == {
        *("at", "kind", "holder", "previous_holder", "fencing_token", "reason", "actor")
    }


def test_what_could_steer_a_terminal_is_spelled_out() -> None:
    assert plain("a\x1b[2Jb\nc\u2028d é 漢") == "a\\x1b[2Jb\\x0ac\\x2028d é 漢"


@pytest.mark.django_db
def test_hostile_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    make_lease(resource="crane:1", holder="ann")
    Lease.objects.revoke("\x1b[2Jgone\nfree  eve", "\x1b]0;root\x07")

    for arguments in (["show", "crane:1"], ["show", "crane:1", "--json"], ["list"]):
        assert "\x1b" not in printed(capsys, *arguments)
    assert "\\x1b[2Jgone\\x0afree  eve" in printed(capsys, "show", "crane:1")


# leases revoke


@pytest.mark.django_db
def test_who_revokes_is_by_default_who_runs_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    make_lease(resource="crane:1")

    call_command("leases", "revoke", "crane:1", "--reason", "it burns")

    assert LeaseEvent.objects.get(kind="revoked").actor == "alice"


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["free", "released", "revoked"])
def test_there_is_nothing_to_revoke_where_nobody_holds(state: str) -> None:
    make_lease(resource="crane:1", state=state)
    before = LeaseEvent.objects.count()

    with pytest.raises(CommandError, match="crane:1") as refusal:
        call_command("leases", "revoke", "crane:1", "--reason", "it burns")

    assert refusal.value.returncode == 1
    assert LeaseEvent.objects.count() == before


# run_as_leader: what it makes of its options


class Stage:
    """In place of running the command: what it is given, and how it is to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.endings: list[Run | str] = [Run(0)]
        self.runs: list[tuple[Any, ...]] = []
        self.asides: list[float] = []
        self._stop: list[Any] = []
        monkeypatch.setattr(run_as_leader, "run_under", self._run)
        monkeypatch.setattr(run_as_leader, "on_stop_signal", self._signals)
        monkeypatch.setattr(Rest, "wait", lambda rest: self.asides.append(rest.seconds))

    def _signals(self, stop: Callable[[], object]) -> AbstractContextManager[None]:
        self._stop.append(stop)
        return nullcontext()

    def _run(
        self, term: Any, command: list[str], stopping: threading.Event, oversight: Oversight
    ) -> Run:
        self.runs.append((term.resource, term.holder, term.ttl, command, oversight.stop_timeout))
        ending = self.endings.pop(0)
        if isinstance(ending, str):
            self._stop[0]()
            ending = Run(int(ending), "this process is asked to stop")
        return ending


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    yield Stage(monkeypatch)
    keeper.stop()


def exit_code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        call_command("run_as_leader", *arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


in_earnest = pytest.mark.django_db(transaction=True)


@in_earnest
@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["race", "--ttl", "40", "--holder", "ann", "--", "true"], ["true"]),
        (["--ttl", "40", "--holder", "ann", "race", "--", "true", "--ttl", "7"], None),
        (["race", "--holder", "ann", "--ttl", "40", "true", "--once"], ["true", "--once"]),
        (["race", "--holder", "ann", "--ttl", "40", "--", "true", "--", "x"], ["true", "--", "x"]),
    ],
)
def test_the_command_is_what_follows(
    stage: Stage, arguments: list[str], command: list[str] | None
) -> None:
    assert exit_code_of(*arguments) == 0
    assert stage.runs == [("race", "ann", 40.0, command or ["true", "--ttl", "7"], 10.0)]
    assert not Lease.objects.active().exists()


def test_the_lease_is_in_the_store_that_is_named(stage: Stage) -> None:
    shelf = {"BACKEND": "leasing.stores.memory.MemoryStore"}
    with override_settings(LEASING={"STORES": {"here": shelf}}):
        store: Any = stores["here"]
        assert exit_code_of("race", "--store", "here", "--", "true") == 0
        assert [event.kind for event in store.events] == ["acquired", "released"]


LOST = Run(0, "its term was lost", term_ended=True)


@in_earnest
@pytest.mark.parametrize(
    ("options", "endings", "code", "asides"),
    [
        pytest.param([], [Run(0)], 0, [], id="it ends by itself"),
        pytest.param([], [Run(7)], 7, [], id="it fails by itself"),
        pytest.param([], [Run(143)], 143, [], id="somebody else ends it"),
        pytest.param([], [LOST, LOST, Run(7)], 7, [], id="it is led again after a loss"),
        pytest.param(["--once"], [LOST], 75, [], id="once, and lost"),
        pytest.param(["--once"], [Run(7)], 7, [], id="once, and it ends by itself"),
        pytest.param(["--restart"], [Run(7), LOST, Run(0), "0"], 0, [2.0, 2.0], id="started again"),
        pytest.param([], ["0"], 0, [], id="stopped, it ends well"),
        pytest.param([], ["143"], 0, [], id="stopped, it leaves it to the signal"),
        pytest.param([], ["7"], 7, [], id="stopped, it fails"),
        pytest.param([], [str(KILLED)], KILLED, [], id="stopped, it has to be killed"),
        pytest.param(["--restart"], ["143"], 0, [], id="stopped, it is not started again"),
    ],
)
def test_what_comes_after_the_command(
    stage: Stage, options: list[str], endings: list[Run | str], code: int, asides: list[float]
) -> None:
    stage.endings = list(endings)

    assert exit_code_of("race", *options, "--", "true") == code
    assert len(stage.runs) == len(endings)
    assert stage.asides == asides
    assert not Lease.objects.active().exists()


@in_earnest
def test_a_stop_while_others_lead_ends_it_well(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lease(resource="race", ttl=600)
    monkeypatch.setattr(run_as_leader, "on_stop_signal", lambda stop: nullcontext(stop()))

    call_command("run_as_leader", "race", "--", "true")
    assert stage.runs == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["race"], "COMMAND"),
        (["race", "--"], "COMMAND"),
        (["race", "--", "no-such-command"], "no-such-command"),
        ([" race", "--", "true"], "space"),
        (["race", "--ttl", "0", "--", "true"], " 1 .* 86400"),
        (["race", "--ttl", "nan", "--", "true"], " 1 .* 86400"),
        (["race", "--holder", "", "--", "true"], "1 .* 200"),
        (["race", "--store", "defualt", "--", "true"], "Did you mean 'default'"),
        (["race", "--stop-timeout", "-1", "--", "true"], "--stop-timeout"),
        (["race", "--stop-timeout", "nan", "--", "true"], "--stop-timeout"),
        (["race", "--once", "--restart", "--", "true"], "--restart"),
    ],
)
def test_run_as_leader_refuses_an_option_that_is_out_of_bounds(
    stage: Stage, arguments: list[str], named: str
) -> None:
    with pytest.raises(CommandError, match=named):
        call_command("run_as_leader", *arguments)


# run_as_leader, as a process

#: Says that it leads, and what it was told; leaves with 3 when it is asked to.
LED = """
import os, signal, sys, time
def note(what):
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.environ['LEASE_FENCING_TOKEN']} {what} {os.getpid()}\\n")
def leave(*args):
    note("asked")
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
note(os.environ["LEASE_RESOURCE"])
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.01)
note("goes")
sys.exit(5)
"""


@pytest.fixture
def notes_of(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def leads(spawn: Spawn, notes: Path, *options: str) -> Process:
    """A process that leads; it does when this returns."""
    command = ["manage.py", "run_as_leader", "--skip-checks", "race", "--holder", "ann", *options]
    process = spawn([*command, "--", sys.executable, "-S", "-c", LED, str(notes)])
    wait_for(lambda: reported(notes), timeout=PATIENCE, process=process)
    return process


def reported(notes: Path) -> list[str]:
    text = notes.read_text() if notes.exists() else ""
    return [line.split()[1] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def pid_of(notes: Path) -> int:
    return int(notes.read_text().split()[2])


@pytest.mark.slow
@in_earnest
def test_a_command_runs_while_this_leads_and_ends_with_its_code(
    spawn: Spawn, notes_of: Path
) -> None:
    process = leads(spawn, notes_of)
    lease = Lease.objects.active().get()
    assert lease.holder == "ann"
    assert notes_of.read_text().split()[:2] == [str(lease.fencing_token), "race"]

    Path(f"{notes_of}.go").touch()
    assert process.wait(PATIENCE) == 5
    assert reported(notes_of) == ["race", "goes"]
    assert not Lease.objects.active().exists()


@in_earnest
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_passed_on_and_the_leadership_given_back_at_once(
    spawn: Spawn, notes_of: Path, number: signal.Signals
) -> None:
    process = leads(spawn, notes_of, "--ttl", "600")

    process.send_signal(number)
    assert process.wait(PATIENCE) == 3
    assert reported(notes_of) == ["race", "asked"]
    assert Lease.objects.released().exists()


@in_earnest
def test_a_revoked_leader_ends_its_command_and_campaigns_again(
    spawn: Spawn, notes_of: Path
) -> None:
    process = leads(spawn, notes_of, "--ttl", "3")

    call_command("leases", "revoke", "race", "--reason", "by a test")
    wait_for(lambda: len(reported(notes_of)) == 3, timeout=PATIENCE, process=process)
    assert reported(notes_of) == ["race", "asked", "race"]
    first, _, second = [int(line.split()[0]) for line in notes_of.read_text().splitlines()]
    assert second > first
    assert process.poll() is None


@in_earnest
def test_a_leader_that_is_killed_takes_its_command_along(spawn: Spawn, notes_of: Path) -> None:
    process = leads(spawn, notes_of, "--ttl", "600")
    pid = pid_of(notes_of)

    process.kill()
    wait_for(lambda: not is_running(pid))
    assert reported(notes_of) == ["race"]
    assert Lease.objects.active().exists()


@pytest.mark.slow
@in_earnest
def test_the_command_of_a_leader_that_is_paused_does_not_outlive_its_term(
    spawn: Spawn, notes_of: Path
) -> None:
    process = leads(spawn, notes_of, "--ttl", "3")
    pid = pid_of(notes_of)

    process.pause()
    wait_for(lambda: not is_running(pid))
    process.resume()
    wait_for(lambda: len(reported(notes_of)) == 2, timeout=PATIENCE, process=process)
    assert reported(notes_of) == ["race", "race"]
