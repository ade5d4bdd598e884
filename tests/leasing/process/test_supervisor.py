"""Running a command for as long as its term lasts: when it is asked to end, and when killed."""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from django.test import override_settings

from leasing.holding.keeper import Keeper
from leasing.holding.term import Term
from leasing.process import deadman
from leasing.process.supervisor import (
    KILLED,
    Oversight,
    Run,
    SupervisedCommand,
    notice_of,
    run_under,
)
from leasing.runtime import clock as clocks
from tests.leasing.support import PATIENCE, FakeStore, hold_of
from tests.logs import logged
from tests.processes import wait_for
from tests.test_processes import is_running

# The decisions


class Look(NamedTuple):
    """A look at a command, and until when it may run then."""

    now: float
    trusted_until: float
    may_run_until: float
    lost: bool = False
    stopping: bool = False


LOST, THIN = "its term was lost", "its term is not renewed"
STOPS = "this process is asked to stop"
#: Of a command that is asked five seconds before the end of trust, and has ten to stop: looks at
#: it, why it was asked to end in them, and if because its term did.
DECISIONS: dict[str, tuple[list[Look], str, bool]] = {
    "it may run until its term is not trusted any more": (
        [Look(0, 30, 30), Look(10, 40, 40)],
        "",
        False,
    ),
    "it is asked when trust becomes thin, and killed when trust ends": (
        # A renewal that comes then is too late: a deaf one must not stay for ever.
        [Look(24.9, 30, 30), Look(25, 30, 30), Look(26, 56, 30)],
        THIN,
        True,
    ),
    "it is not asked a moment before": ([Look(24.9, 30, 30)], "", False),
    "when its term is lost it has a second": (
        [Look(0, 30, 30), Look(3, 0, 4, lost=True), Look(3.5, 0, 4, lost=True)],
        LOST,
        True,
    ),
    "but not beyond what had been promised": (
        [Look(0, 30, 30), Look(29.5, 0, 30, lost=True)],
        LOST,
        True,
    ),
    "nor longer than a second when trust was thin before": (
        [Look(25, 30, 30), Look(26, 0, 27, lost=True)],
        THIN,
        True,
    ),
    "asked to stop it has its time while the term is renewed": (
        [Look(0, 12, 12), Look(4, 12, 12, stopping=True), Look(6, 18, 14, stopping=True)],
        STOPS,
        False,
    ),
    "losing the term while it stops leaves it less": (
        [Look(0, 30, 10, stopping=True), Look(2, 0, 3, lost=True, stopping=True)],
        STOPS,
        True,
    ),
    "without trust it does not even begin": ([Look(5, 0, 0, lost=True)], LOST, True),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_how_long_a_command_may_run(decision: str) -> None:
    looks, asked, term_ended = DECISIONS[decision]
    oversight = Oversight(notice=5, stop_timeout=10)

    for look in looks:
        found = oversight.look(look.now, look.trusted_until, look.lost, look.stopping)
        assert found == look.may_run_until, look
    assert (oversight.asked, oversight.term_ended) == (asked, term_ended)


@pytest.mark.parametrize("ttl", [1, 1.5, 30, 3600])
@pytest.mark.parametrize("settings", [{}, {"RENEW_EVERY": math.inf}, {"JITTER": 0.2}])
def test_no_renewal_that_comes_as_it_should_comes_after_the_notice(
    ttl: float, settings: dict[str, float], store: FakeStore, manual_keeper: Keeper
) -> None:
    with override_settings(LEASING=settings), hold_of(store, manual_keeper, ttl=ttl) as term:
        jitter = settings.get("JITTER", 0.15)
        left = term.trusted_until - manual_keeper.clock() - term.interval * (1 + jitter)

        assert 0 < notice_of(term) < left


# The process that watches it


def test_both_sides_read_the_same_clock() -> None:
    assert abs(deadman.clock() - clocks.system_clock()) < 1


Start = Callable[..., SupervisedCommand]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command, given as Python; MEMORY is a folder for what it has to say."""
    children: list[SupervisedCommand] = []

    def started(code: str, lasting: float = PATIENCE) -> SupervisedCommand:
        child = SupervisedCommand(
            [sys.executable, "-S", "-c", PRELUDE + code], {**os.environ, "MEMORY": str(tmp_path)}
        )
        children.append(child)
        child.run_until(clocks.clock() + lasting)
        return child

    yield started
    for child in children:
        if child.watcher.poll() is None:
            child.__exit__(None, None, None)
        child.channel.close()


PRELUDE = """
import os, signal, sys, time
def say(name, what=""):
    path = os.path.join(os.environ["MEMORY"], name)
    with open(path + ".new", "w") as file:
        file.write(str(what))
    os.rename(path + ".new", path)
def stay():
    while True:
        time.sleep(60)
"""
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
#: With a child of its own, and both say who they are.
TWO = DEAF + "say('child' if os.fork() == 0 else 'parent', os.getpid())\nstay()"


def said(folder: Path, name: str) -> str:
    file = folder / name
    wait_for(file.exists, timeout=PATIENCE, message=name)
    return file.read_text()


def when(folder: Path, names: str, act: Callable[[], object]) -> threading.Thread:
    """Act, in another thread, when a command has said each of ``names``."""

    def wait() -> None:
        for name in names.split():
            said(folder, name)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def end(child: SupervisedCommand) -> int | None:
    """Wait until it has ended, and tell how."""

    def ended() -> bool:
        child.wait(0.02)
        return child.ended

    wait_for(ended, timeout=PATIENCE)
    return child.code


def are_gone(*pids: int) -> None:
    wait_for(lambda: not any(map(is_running, pids)), message="they are gone")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGUSR1)", 128 + signal.SIGUSR1),
    ],
)
def test_a_command_that_ends_by_itself_tells_its_code(
    start: Start, code: str, expected: int
) -> None:
    assert end(start(code)) == expected


def test_a_command_that_cannot_be_started_has_the_code_of_shells(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.txt").touch()
    for name, code in ((str(tmp_path / "none"), 127), (str(tmp_path / "plain.txt"), 126)):
        with SupervisedCommand([name], os.environ) as child:
            child.run_until(clocks.clock() + PATIENCE)
            assert end(child) == code
    reported = capfd.readouterr().err.splitlines()
    assert reported == [
        f"{tmp_path / 'none'}: No such file or directory",
        f"{tmp_path / 'plain.txt'}: Permission denied",
    ]


def test_it_starts_when_it_is_told_for_how_long(tmp_path: Path) -> None:
    with SupervisedCommand(["touch", str(tmp_path / "begun")], os.environ) as child:
        child.wait(0.2)
        assert not child.ended
        assert not (tmp_path / "begun").exists()
        child.run_until(clocks.clock() + PATIENCE)
        assert end(child) == 0
    assert (tmp_path / "begun").exists()


def test_at_its_deadline_it_is_killed_with_all_that_it_started(
    start: Start, tmp_path: Path
) -> None:
    child = start(TWO)
    pids = int(said(tmp_path, "parent")), int(said(tmp_path, "child"))

    deadline = clocks.clock() + 0.3
    child.run_until(deadline)
    assert end(child) is None
    assert clocks.clock() >= deadline
    are_gone(*pids)


def test_a_deadline_that_moves_on_is_heeded(start: Start, tmp_path: Path) -> None:
    child = start(TWO)
    said(tmp_path, "parent")
    first = clocks.clock() + 2.0
    child.run_until(first)
    while clocks.clock() < first + 0.3:
        child.run_until(clocks.clock() + PATIENCE)
        child.wait(0.02)

    assert not child.ended


def test_deadlines_that_come_in_pieces_are_put_together(start: Start, tmp_path: Path) -> None:
    child = start(TWO)
    pid = int(said(tmp_path, "parent"))
    far, past = (deadman.NUMBER.pack(clocks.clock() + far) for far in (PATIENCE, -1))

    child.channel.send(far[:3])
    child.channel.send(far[3:] + past[:5])
    child.wait(0.2)
    assert not child.ended
    child.channel.send(past[5:])
    assert end(child) is None
    are_gone(pid)


def test_when_whoever_started_it_is_gone_it_is_killed(start: Start, tmp_path: Path) -> None:
    child = start(TWO)
    pids = int(said(tmp_path, "parent")), int(said(tmp_path, "child"))

    child.channel.close()  # as the end of this process would
    are_gone(*pids)
    assert child.watcher.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent")
def test_when_the_process_beside_it_is_killed_it_dies_too(start: Start, tmp_path: Path) -> None:
    child = start(TWO)
    parent, grandchild = int(said(tmp_path, "parent")), int(said(tmp_path, "child"))

    child.watcher.kill()
    assert end(child) is None
    are_gone(parent)
    child.__exit__(None, None, None)
    are_gone(grandchild)


def test_what_it_leaves_behind_is_killed(start: Start, tmp_path: Path) -> None:
    child = start(DEAF + "if os.fork() == 0:\n say('child', os.getpid())\n stay()")
    pid = int(said(tmp_path, "child"))
    assert end(child) == 0

    assert is_running(pid)
    child.__exit__(None, None, None)
    are_gone(pid)


def test_what_it_leaves_behind_is_killed_though_nobody_is_there_to_do_it(
    start: Start, tmp_path: Path
) -> None:
    child = start(DEAF + "if os.fork() == 0:\n say('child', os.getpid())\n stay()")
    pid = int(said(tmp_path, "child"))
    assert end(child) == 0

    child.channel.close()
    are_gone(pid)


def unread(child: SupervisedCommand) -> None:
    """Its code has come, and nobody has looked."""
    select.select([child.channel], [], [], PATIENCE)
    child.channel.close()


@pytest.mark.parametrize(
    "failing",
    [unread, lambda child: child.channel.send(deadman.NUMBER.pack(math.nan))],
    ids=["a report that nobody read", "a deadline that is no time"],
)
def test_however_the_process_beside_it_ends_the_command_does(
    start: Start, tmp_path: Path, failing: Callable[[SupervisedCommand], object]
) -> None:
    child = start(DEAF + "if os.fork() == 0:\n say('child', os.getpid())\n stay()")
    pid = int(said(tmp_path, "child"))

    failing(child)

    are_gone(pid)
    assert child.watcher.wait(PATIENCE) == -signal.SIGKILL


def test_asked_to_end_it_may_have_its_last_words(start: Start, tmp_path: Path) -> None:
    child = start(
        "def leave(*args):\n say('bye')\n sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, leave)\nsay('up')\nstay()"
    )
    said(tmp_path, "up")

    child.ask_to_end()
    assert end(child) == 3
    said(tmp_path, "bye")


def test_one_that_leaves_it_to_the_signal_ends_by_that(start: Start, tmp_path: Path) -> None:
    child = start("say('up')\nstay()")
    said(tmp_path, "up")

    child.ask_to_end()
    assert end(child) == 128 + signal.SIGTERM


def test_it_is_not_started_in_the_group_of_somebody_else() -> None:
    """The group would be killed with it."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", deadman.__file__, "0", "true"], capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "the first process of a group" in done.stderr


def test_what_is_asked_before_it_has_begun_it_hears_when_it_has(
    start: Start, tmp_path: Path
) -> None:
    child = start("say('up')\nstay()")
    child.ask_to_end()

    assert end(child) == 128 + signal.SIGTERM


# Under a term


@pytest.fixture
def term(store: FakeStore) -> Iterator[Term]:
    """By the real clock: the process that watches the command has no other."""
    term = hold_of(store, Keeper(threads=False), key="sched", ttl=300).__enter__()
    yield term
    term.detach()


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", PRELUDE + code]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMORY", str(tmp_path))
    return tmp_path


def test_a_command_is_told_its_lease_and_its_token(term: Term, place: Path) -> None:
    code = "say('env', os.environ['LEASE_RESOURCE'] + ' ' + os.environ['LEASE_FENCING_TOKEN'])"

    assert run_under(term, python(code), threading.Event(), Oversight(0, 5)) == Run(0)
    assert said(place, "env") == f"{term.resource} {term.fencing_token}"


def test_a_command_is_asked_to_end_when_its_term_is_lost(
    term: Term, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *a: sys.exit(3))\nsay('up')\nstay()"
    lose = when(place, "up", lambda: term.mark_lost("revoked"))

    run = run_under(term, python(code), threading.Event(), Oversight(0, 5, last_words=PATIENCE))

    lose.join()
    assert run == Run(3, "its term was lost", term_ended=True)
    assert "leader.command_asked_to_end" in logged(caplog)
    assert "its term was lost" in caplog.text


def test_a_deaf_command_is_killed_a_second_after_its_term_was_lost(term: Term, place: Path) -> None:
    lose = when(place, "parent child", lambda: term.mark_lost("revoked"))

    run = run_under(term, python(TWO), threading.Event(), Oversight(0, 5, last_words=0.2))

    lose.join()
    assert run == Run(KILLED, "its term was lost", term_ended=True)
    are_gone(int(said(place, "parent")), int(said(place, "child")))


def test_a_command_is_killed_when_the_trust_in_its_term_ends(term: Term, place: Path) -> None:
    term.trusted_until = clocks.clock() + 0.5

    deaf = python(DEAF + "say('up')\nstay()")
    run = run_under(term, deaf, threading.Event(), Oversight(0, 5))

    assert run == Run(KILLED, "its term is not renewed", term_ended=True)
    assert clocks.clock() >= term.trusted_until


def test_asked_to_stop_a_command_has_its_time(term: Term, place: Path) -> None:
    stopping = threading.Event()
    stop = when(place, "up", stopping.set)

    run = run_under(term, python(DEAF + "say('up')\nstay()"), stopping, Oversight(0, 0.3))

    stop.join()
    assert run == Run(KILLED, "this process is asked to stop")


def test_an_error_of_this_process_ends_the_command(
    term: Term, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(child: SupervisedCommand, seconds: float) -> None:
        for name in ("parent", "child"):
            said(place, name)
        raise ZeroDivisionError

    monkeypatch.setattr(SupervisedCommand, "wait", fail)
    with pytest.raises(ZeroDivisionError):
        run_under(term, python(TWO), threading.Event(), Oversight(0, 5))

    are_gone(int(said(place, "parent")), int(said(place, "child")))


def test_killed_while_this_process_was_paused_it_is_known_to_have_outlived_its_term(
    term: Term, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that watches does not wait for this one to wake up."""
    caplog.set_level(logging.WARNING)
    waits = SupervisedCommand.wait

    def sleep_once(child: SupervisedCommand, seconds: float) -> None:
        monkeypatch.setattr(SupervisedCommand, "wait", waits)
        child.run_until(clocks.clock() + 0.2)
        child.watcher.wait(PATIENCE)
        term.trusted_until = 0.0
        term.mark_lost("it was not renewed in time")
        child.wait(0)

    monkeypatch.setattr(SupervisedCommand, "wait", sleep_once)
    run = run_under(term, python(DEAF + "stay()"), threading.Event(), Oversight(0, 5))

    assert run == Run(KILLED, "its term was lost", term_ended=True)
