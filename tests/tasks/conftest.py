"""Fixtures for the tests of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal
from pytest_django import Settings

from leasing import signals as lease_signals
from leasing.holding.keeper import Keeper
from tasks import registry as known_handlers
from tasks import retry, signals
from tasks.execution import runner
from tasks.execution.attempt import Attempt
from tasks.execution.context import Context
from tasks.models import Task
from tasks.querysets import recovery
from tasks.runtime import marks
from tasks.runtime.marks import Marks
from tasks.scheduling import declarations
from tasks.scheduling.declarations import Declaration
from tests.factories import make_task
from tests.fixtures import (
    clocks,
    compatible,
    holder_clock,
    others_write,
    portable,
    registry,
    shard,
    spans,
    value,
)
from tests.leasing.conftest import (
    clock,
    database_clock,
    form,
    hold,
    manual_keeper,
    notes,
    on_postgresql,
    other_session,
    store,
)
from tests.limits import limits
from tests.tasks.support import Handlers, Reported, kept

__all__ = [
    "clock",
    "clocks",
    "compatible",
    "database_clock",
    "form",
    "hold",
    "holder_clock",
    "limits",
    "manual_keeper",
    "notes",
    "on_postgresql",
    "other_session",
    "others_write",
    "portable",
    "registry",
    "shard",
    "spans",
    "store",
    "value",
]


@pytest.fixture(autouse=True)
def _no_sweep_at_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim recovers nothing that the test has prepared, unless the test recovers first."""
    monkeypatch.setattr(recovery, "swept_at", {"default": float("inf")})


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens to what is enqueued, claimed or completed: not even what an earlier test has
    left to the collector of garbage."""
    for signal in (signals.enqueued, signals.claimed, signals.completed):
        monkeypatch.setattr(signal, "receivers", [])


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Handlers:
    """Handlers of this test: ``handlers["name"] = function`` registers it."""
    known = dict(known_handlers._handlers)
    monkeypatch.setattr(known_handlers, "_handlers", known)
    return Handlers(known)


@pytest.fixture
def task() -> Task:
    """A task that ann runs."""
    running = make_task(state="running", holder="ann")
    return running


@pytest.fixture
def attempt_of(notes: Keeper) -> Callable[[Task], Attempt]:
    """The attempt of a claimed task, renewed by hand; its notes wait for the test."""
    return lambda task: kept(task, notes)


@pytest.fixture
def context(attempt_of: Callable[[Task], Attempt]) -> Callable[[Task], Context]:
    """Return the contexts of handlers of claimed tasks."""
    return lambda task: Context(attempt_of(task))


@pytest.fixture
def connection_stays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The connection of a test, and its transaction, outlast the tasks that it runs. Returns the
    moments at which old connections would have been closed."""
    closed: list[str] = []
    monkeypatch.setattr(runner, "close_old_connections", lambda: closed.append("closed"))
    return closed


@pytest.fixture
def run_task(
    attempt_of: Callable[[Task], Attempt], handlers: Handlers, connection_stays: list[str]
) -> Callable[..., Task]:
    """Run a task to its end as a worker would, with the function given as its handler: a new
    one, or the ``task`` that was claimed."""

    def run_task(function: Callable[..., Any], *, task: Task | None = None, **options: Any) -> Task:
        handlers["jobs.echo"] = function
        mine: Task = task or make_task(name="jobs.echo", state="running", **options)
        runner.run(attempt_of(mine))
        return Task.objects.get(pk=mine.pk)

    return run_task


@pytest.fixture
def own_declarations(monkeypatch: pytest.MonkeyPatch) -> dict[str, Declaration]:
    """What code declares during the test, by the names of the schedules: nothing at first."""
    declared: dict[str, Declaration] = {}
    monkeypatch.setattr(declarations, "_declared", declared)
    return declared


@pytest.fixture
def use_marks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Marks | None], None]:
    """Has this process note in the given marks which tasks have begun; None: in none."""
    return lambda known: monkeypatch.setattr(marks, "current", known)


@pytest.fixture
def queues(settings: Settings) -> None:
    """Three queues: default, mail and reports."""
    settings.TASK_QUEUE = {"QUEUES": ("default", "mail", "reports")}


@pytest.fixture
def renamed(handlers: Handlers) -> list[int]:
    """Return the keys of two tasks of one handler: stored under the name "sort", now its alias, and
    as "file". A third belongs to another handler."""
    handlers["sort"] = handlers["other"] = lambda ctx: None
    keys = [Task.objects.enqueue("sort").pk]
    known_handlers.handler("file", aliases=["sort"])(known_handlers.find("sort").function)
    keys.append(Task.objects.enqueue("file").pk)
    Task.objects.enqueue("other")
    return keys


@pytest.fixture
def quick(settings: Settings) -> None:
    """Three queues, and workers that look often."""
    settings.TASK_QUEUE = {
        "QUEUES": ("default", "mail", "reports"),
        "POLL_EVERY": 0.05,
        "SWEEP_EVERY": 0.1,
    }


@pytest.fixture
def reported() -> Iterator[Reported]:
    """Every signal about a task that was sent, of its lease too."""
    heard: Reported = []
    named = {name: signal for name, signal in vars(signals).items() if _is_signal(signal)}
    named |= {name: getattr(lease_signals, name) for name in ("renewed", "lost", "refused")}
    connected = []
    for name, signal in named.items():

        def receiver(_name: str = name, **details: Any) -> None:
            row = details.pop("task", None) or details.pop("lease", None)
            rest = {k: v for k, v in details.items() if k not in ("signal", "sender")}
            heard.append((_name, row.pk if row is not None else 0, rest))

        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))
    yield heard
    for signal, receiver in connected:
        signal.disconnect(receiver)


def _is_signal(value: object) -> bool:
    return isinstance(value, Signal)


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float, float], float]], None]:
    """Draw the longest pause before another attempt: one drawn near to nothing would be over
    before the test has looked. Has the test draw another: ``drawing(lambda low, high: low)``."""

    def draw_by(draw: Callable[[float, float], float]) -> None:
        monkeypatch.setattr(retry, "draw", draw)

    draw_by(lambda low, high: high)
    return draw_by
