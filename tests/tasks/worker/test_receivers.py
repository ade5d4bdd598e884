"""Receivers of what happens in a worker: they hold up nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.dispatch import Signal
from pytest_django import Settings

from leasing import signals as leases
from tasks import signals
from tasks.celery import attendant
from tasks.management.commands import run_generator, run_recovery
from tasks.models import Task
from tests.factories import make_task, make_tasks
from tests.leasing.support import OtherSession
from tests.limits import Limits
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.support import Handlers, row_of
from tests.tasks.workers import DUTIES, PATIENCE, ended, patient, states, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]

#: Connects a receiver for the time of a test.
Connect = Callable[[Signal, Callable[..., Any]], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    connected: list[tuple[Signal, Callable[..., Any]]] = []

    def connect(signal: Signal, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


class Hanging:
    """A receiver without a time-out."""

    def __init__(self) -> None:
        self.reported: list[int] = []
        self.let_go = threading.Event()

    def __call__(self, task: Any = None, lease: Any = None, **details: Any) -> None:
        self.reported.append((task or lease).pk)
        self.let_go.wait(3 * PATIENCE)  # longer than anybody waits for what it must not hold up


@pytest.fixture
def hanging(limits: Limits) -> Iterator[Hanging]:
    limits(hangs_after=0.01)
    hanging = Hanging()
    yield hanging
    hanging.let_go.set()


@pytest.mark.parametrize("name", ["claimed", "completed"])
def test_receivers_that_hang_hold_up_neither_claims_nor_results(
    name: str, connect: Connect, hanging: Hanging
) -> None:
    connect(getattr(signals, name), hanging)

    with working():
        for number in range(6):  # more than threads that store
            make_task(name="jobs.echo", data={})
            wait_for(lambda: states() == ["succeeded"] * (number + 1))  # noqa: B023
        wait_for(lambda: len(hanging.reported) == 6)
        hanging.let_go.set()


def test_receivers_that_hang_hold_up_no_examination(
    connect: Connect, hanging: Hanging, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "MIN_TTL": 0.1}
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "EXAMINE_EVERY": 0.2}
    connect(signals.suspected, hanging)

    with working(queues=["default"]):
        for number in range(3):
            make_task(queue="mail")  # which nobody serves
            wait_for(lambda: len(hanging.reported) == number + 1)  # noqa: B023
        hanging.let_go.set()


@contextmanager
def alone(monkeypatch: pytest.MonkeyPatch, command: ModuleType, **options: Any) -> Iterator[None]:
    """A process in which only the ``command`` runs."""
    stops: list[Callable[[], object]] = []

    def on_stop_signal(stop: Callable[[], object]) -> AbstractContextManager[None]:
        stops.append(stop)
        return nullcontext()

    def work() -> None:
        call_command(command.__name__.rpartition(".")[2], **options)
        connections.close_all()

    monkeypatch.setattr(command, "on_stop_signal", on_stop_signal)
    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: stops)
    try:
        yield
    finally:
        stops[0]()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def recovery_alone(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    return alone(monkeypatch, run_recovery)


@contextmanager
def beside_celery(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    consumer, controller = SimpleNamespace(queues=[]), SimpleNamespace(concurrency=1)
    attendant._begin(
        SimpleNamespace(hostname="celery@here", task_consumer=consumer, controller=controller)
    )
    try:
        yield
    finally:
        attendant._end()


@pytest.mark.parametrize("recovering", [recovery_alone, beside_celery])
def test_receivers_that_hang_hold_up_no_recovery(
    recovering: Callable[[pytest.MonkeyPatch], AbstractContextManager[None]],
    connect: Connect,
    hanging: Hanging,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(signals.recovered, hanging)

    with recovering(monkeypatch):
        try:
            for number in range(2):
                make_task(state="stuck")
                wait_for(lambda: states() == ["ready"] * (number + 1))  # noqa: B023
            # Those that wait are told though nothing more happens.
            wait_for(lambda: len(hanging.reported) == 2)
        finally:
            hanging.let_go.set()
    wait_for(lambda: not {each.name for each in threading.enumerate()} & DUTIES)


@pytest.mark.parametrize("signal", [leases.acquired, signals.enqueued], ids=["lease", "task"])
def test_receivers_that_hang_hold_up_no_generator(
    signal: Signal, connect: Connect, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(signal, hanging)

    with alone(monkeypatch, run_generator, rate=100, start=True):
        try:
            wait_for(lambda: Task.objects.count() >= 30)
            wait_for(lambda: hanging.reported)
        finally:
            hanging.let_go.set()


def test_receivers_hear_of_a_task_in_order_and_as_it_was(connect: Connect) -> None:
    reported: list[tuple[int, str, str]] = []

    def receiver(task: Task, signal: Signal, **details: Any) -> None:
        name = "claimed" if signal is signals.claimed else "completed"
        reported.append((task.pk, name, task.status))

    connect(signals.claimed, receiver)
    connect(signals.completed, receiver)
    tasks = make_tasks(20, name="jobs.echo", data={})
    with working():
        wait_for(lambda: states() == ["succeeded"] * 20)

    for task in tasks:
        mine = [(name, status) for key, name, status in reported if key == task.pk]
        assert mine == [("claimed", "running"), ("completed", "succeeded")]


def test_a_worker_that_cannot_store_ends_to_be_started_again(
    on_postgresql: None,
    handlers: Handlers,
    other_session: OtherSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody has locked the row for long; any other reason makes no difference."""
    hasty = patient(stuck_after=0.01, stuck_after_answers=0, end_patience=0.1)
    locked = threading.Event()
    handlers["jobs.echo"] = lambda ctx, **data: locked.wait(PATIENCE) and None
    task = make_task(name="jobs.echo", data={})
    with working(stop_timeout=0, timing=hasty) as worker:
        wait_for(lambda: row_of(task)["status"] == "running")
        other_session.lock(task)
        locked.set()
        wait_for(lambda: worker.failed)
        wait_for(ended(worker))

    assert "worker.stuck" in logged(caplog)
    assert "results can't be stored, though the database answers" in caplog.text
    assert row_of(task)["status"] == "running"
