"""The commands: what they refuse, and what they make of their options."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import threading
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import autoreload

from leasing.management.base import TablesCommand
from leasing.runtime import shutdown
from leasing.validation.names import default_holder
from tasks.execution.chaos import Chaos
from tasks.generator import Generator
from tasks.management import greeting
from tasks.management.commands import run_generator, run_recovery, run_worker
from tasks.models import GeneratorDesiredState
from tasks.runtime.service_threads import ServiceThreads
from tasks.sample import own_handlers
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.support import Handlers


class Noted:
    """Stands for a worker or a generator: keeps what it was made with, and does not run."""

    name = "ann"
    failed = False
    attempts: tuple[()] = ()

    made: dict[str, Any] = {}

    def __init__(self, **options: Any) -> None:
        Noted.made = options

    def run(self, *args: Any) -> None: ...

    def stop(self) -> None: ...


def run(line: str) -> None:
    """Run the command ``line``."""
    call_command(*line.split())


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TablesCommand, "check_migrations", lambda command: None)
    monkeypatch.setattr(greeting, "facts", lambda worker: {"queues": "default"})
    monkeypatch.setattr(Noted, "made", {})
    monkeypatch.setattr(run_worker, "WorkerProcess", Noted)
    monkeypatch.setattr(run_generator, "Generator", Noted)
    for module in (run_worker, run_generator, run_recovery):
        monkeypatch.setattr(module, "on_stop_signal", lambda stop: nullcontext())
    monkeypatch.setattr(ServiceThreads, "start", lambda threads, *services, **options: None)
    for costly in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, costly, lambda: None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--threads", "0"], "--threads .* 1"),
        (["--coroutines", "0"], "--coroutines .* 1"),
        (["--processes", "0"], "--processes .* 1"),
        (["--max-tasks", "0"], "--max-tasks .* 1"),
        (["--max-memory", "0"], "--max-memory .* 1"),
        (["--max-memory", "10"], "--max-memory .* MiB that the worker has at its start"),
        (["--health-port", "65536"], "--health-port .* 65535"),
        (["--workers", "2", "--metrics-port", "65535"], "--metrics-port .* 65534"),
        (["--workers", "-1"], "--workers .* 0"),
        (["--workers", "many"], "--workers .* auto"),
        (["--workers", "2", "--autoreload"], "--autoreload"),
        (["--once", "--drain"], "--drain"),
        (["--queue", "nowhere"], "'nowhere'"),
        (["--queue", "default", "--queue", "nowhere"], "'nowhere'"),
        (["--ttl", "0.5"], " 1 .* 86400"),
        (["--ttl", "nan"], " 1 .* 86400"),
        (["--threads", "four"], "--threads: .*'four'"),
        (["--name", "a\nb"], "control"),
        (["--name", " ann"], "space"),
        (["--name", "a" * 195, "--workers", "2"], "200"),
    ],
)
def test_run_worker_refuses_an_option_that_is_out_of_bounds(options: list[str], named: str) -> None:
    with pytest.raises(CommandError, match=named):
        call_command("run_worker", *options)

    assert Noted.made == {}


def test_a_workers_options_reach_it() -> None:
    run(
        "run_worker --queue default --threads 3 --coroutines 4 --processes 5 --max-tasks "
        "6 --max-memory 8000 --drain --ttl 7 --stop-timeout 9 --name ann --chaos"
    )

    chaos = Noted.made.pop("chaos")
    assert isinstance(chaos, Chaos)
    assert Noted.made.pop("name").rpartition(":")[0] == "ann"
    assert Noted.made == {
        "queues": ["default"],
        "threads": 3,
        "coroutines": 4,
        "processes": 5,
        "max_tasks": 6,
        "max_memory": 8000,
        "until": "drained",
        "ttl": 7,
        "stop_timeout": 9,
        "fleet": None,
    }


def test_a_worker_without_options_has_the_defaults() -> None:
    call_command("run_worker")

    assert Noted.made.pop("name").rpartition(":")[0] == default_holder().rpartition(":")[0]
    assert Noted.made == {
        "queues": None,
        "threads": 4,
        "coroutines": 100,
        "processes": 1,
        "max_tasks": None,
        "max_memory": None,
        "until": "stopped",
        "ttl": None,
        "stop_timeout": None,
        "fleet": None,
        "chaos": None,
    }


@pytest.mark.parametrize(("verbosity", "shown"), [("1", True), ("0", False)])
def test_a_worker_introduces_itself_unless_it_is_to_be_quiet(
    capsys: pytest.CaptureFixture[str], verbosity: str, shown: bool
) -> None:
    call_command("run_worker", "--verbosity", verbosity)

    text = f"django-leasing {version('django-leasing')}: worker ann\n  queues     default\n"
    assert capsys.readouterr().out == (text if shown else "")


@pytest.mark.parametrize("verbosity", ["1", "0"])
def test_a_worker_that_found_no_handler_warns(
    handlers: Handlers, caplog: pytest.LogCaptureFixture, verbosity: str
) -> None:
    for name in own_handlers():
        del handlers[name]

    call_command("run_worker", "--verbosity", verbosity)

    assert logged(caplog) == (["worker.without_handlers"] if verbosity == "1" else [])


def test_a_worker_may_end_with_what_is_ready() -> None:
    call_command("run_worker", "--once")

    assert Noted.made["until"] == "once"


def test_in_development_a_worker_starts_again_with_new_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the reloader it runs next to the main thread, whose end gives its tasks back."""
    at_exit: list[Any] = []
    monkeypatch.setattr(autoreload, "run_with_reloader", lambda work: work())
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(Noted, "stop_now", "gives back", raising=False)

    call_command("run_worker", "--autoreload", "--threads", "2")

    assert Noted.made["threads"] == 2
    assert at_exit == ["gives back"]


def test_of_the_processes_of_the_reloader_the_worker_alone_runs_the_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else their warnings are printed twice."""
    checked: list[str] = []
    monkeypatch.setattr(run_worker.Command, "check", lambda *args, **options: checked.append("all"))
    monkeypatch.setattr(autoreload, "run_with_reloader", lambda work: None)

    call_command("run_worker", "--autoreload", skip_checks=False)
    assert checked == []
    monkeypatch.setenv(autoreload.DJANGO_AUTORELOAD_ENV, "true")
    call_command("run_worker", "--autoreload", skip_checks=False)
    assert checked == ["all"]


def test_a_worker_that_failed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noted, "failed", True)

    with pytest.raises(CommandError, match="stuck"):
        call_command("run_worker")


def test_a_thread_that_runs_on_does_not_keep_the_process_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[int] = []
    monkeypatch.setattr(Noted, "attempts", ["one"])
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(os, "_exit", left.append)

    call_command("run_worker")

    assert left == [0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--rate", "0"], "--rate .* 0"),
        (["--rate", "-1"], "--rate .* 0"),
        (["--rate", "nan"], "--rate .* 0"),
        (["--rate", "10001"], " 10000"),
        (["--shortest", "-1"], " 0 .* 60"),
        (["--longest", "61"], " 0 .* 60"),
        (["--shortest", "5", "--longest", "4"], " 0 .* 60"),
        (["--queue", "nowhere"], "'nowhere'"),
        (["--ttl", "0"], " 1 .* 86400"),
        (["--name", "a\nb"], "control"),
    ],
)
def test_run_generator_refuses_an_option_that_is_out_of_bounds(
    options: list[str], named: str
) -> None:
    with pytest.raises(CommandError, match=named):
        call_command("run_generator", *options)

    assert Noted.made == {}


def test_a_generators_options_reach_it() -> None:
    run("run_generator --rate 5 --shortest 1 --longest 2 --queue default --ttl 7 --name ann")

    assert Noted.made.pop("name").rpartition(":")[0] == "ann"
    assert Noted.made == {
        "rate": 5,
        "shortest": 1,
        "longest": 2,
        "queue": "default",
        "ttl": 7,
    }


def test_a_generator_without_options_has_the_defaults() -> None:
    call_command("run_generator")

    assert Generator(**Noted.made) == Generator(name=Noted.made["name"])


@pytest.mark.django_db
def test_a_generator_can_be_started_with_its_process() -> None:
    call_command("run_generator")
    assert not GeneratorDesiredState.objects.exists()

    call_command("run_generator", "--start")
    assert GeneratorDesiredState.objects.get().wanted


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_each_signal_asks_once_on_a_thread_of_its_own(number: signal.Signals) -> None:
    asked: list[str] = []
    with shutdown.on_stop_signal(lambda: asked.append(threading.current_thread().name)):
        os.kill(os.getpid(), number)
        wait_for(lambda: asked == ["stop-signals"])
        os.kill(os.getpid(), number)
        wait_for(lambda: asked == ["stop-signals"] * 2)


def test_signals_do_afterwards_what_they_did_before() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(KeyError), shutdown.on_stop_signal(lambda: None):
            raise KeyError
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: heard == [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_nothing_is_left_of_waiting_for_signals() -> None:
    before = left_behind()
    with shutdown.on_stop_signal(lambda: None):
        assert left_behind() != before
    wait_for(lambda: left_behind() == before)


def left_behind() -> tuple[Any, ...]:
    handlers = [signal.getsignal(number) for number in shutdown.SIGNALS]
    descriptors = len(os.listdir("/proc/self/fd"))
    return handlers, set(threading.enumerate()), descriptors


def test_a_thread_that_gets_no_signals_handles_none() -> None:
    handlers: list[Any] = []

    def run() -> None:
        with shutdown.on_stop_signal(lambda: None):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert handlers == [signal.getsignal(signal.SIGTERM)]


def test_a_signal_can_stop_what_waits_for_the_lock_that_it_interrupted() -> None:
    """A handler that set the event itself could wait for ever for the lock inside it."""
    stopping = threading.Event()
    with shutdown.on_stop_signal(stopping.set):
        with stopping._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)

        assert stopping.wait(20)


@pytest.mark.parametrize(("before", "inside"), [(700, 10_000), (50_000, 50_000), (0, 0)])
def test_a_worker_looks_for_garbage_seldom_and_never_where_that_is_off(
    before: int, inside: int
) -> None:
    usual = gc.get_threshold()
    try:
        gc.set_threshold(before, *usual[1:])
        with run_worker.collected_seldom():
            during = gc.get_threshold()
        after = gc.get_threshold()
    finally:
        gc.set_threshold(*usual)

    assert (during, after) == ((inside, *usual[1:]), (before, *usual[1:]))
