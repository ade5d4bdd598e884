"""Reasons to wake a waiting worker."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.db.dialects import private_connection
from leasing.functions import database_now
from leasing.runtime.services import run_services
from leasing.waiting import listener as leasing_listener
from tasks import notifier
from tasks.models import Task, TaskStatus
from tasks.notifier import CHANNEL, Listener, limiter
from tasks.runtime.service_threads import ServiceThreads
from tasks.worker.process import WorkerProcess
from tests.factories import make_task, make_tasks
from tests.leasing.support import FakeClock, expire, refused_except_to_listen
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.support import Handlers, row_of, running
from tests.tasks.workers import PATIENCE, working

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Return the notifications within this process, without a pause that another test began."""
    limiter.forget()
    messages: list[str] = []
    with limiter.heard_by(messages.append):
        yield messages


def test_who_enqueues_notifies_once_the_task_is_there_to_stay(heard: list[str]) -> None:
    with transaction.atomic():
        make_task(name="jobs.echo")
        assert heard == []

    assert heard == ["queue 0 default"]


def test_what_is_rolled_back_notifies_nobody_and_silences_nobody(heard: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        make_task(name="jobs.echo")
        raise ZeroDivisionError
    assert heard == []

    make_task(name="jobs.echo")
    assert heard == ["queue 0 default"]


@pytest.mark.usefixtures("queues")
def test_a_queue_is_notified_once_in_a_while_each_by_itself(
    heard: list[str],
    holder_clock: FakeClock,
) -> None:
    make_tasks(3, name="jobs.echo")
    make_task(name="jobs.echo", queue="mail")
    assert heard == ["queue 0 default", "queue 0 mail"]

    holder_clock.advance(notifier.IN_STATEMENT_WINDOW * 0.9)
    make_task(name="jobs.echo")
    assert len(heard) == 2
    holder_clock.advance(notifier.WINDOW)
    make_task(name="jobs.echo")
    assert heard[2:] == ["queue 0 default"]


def test_a_priority_that_is_higher_than_the_last_is_notified_at_once(
    heard: list[str],
    holder_clock: FakeClock,
) -> None:
    for priority in (0, 5, 5, 3, -1, 6):
        make_task(name="jobs.echo", priority=priority)
    assert heard == ["queue 0 default", "queue 5 default", "queue 6 default"]

    holder_clock.advance(2 * notifier.WINDOW)
    make_task(name="jobs.echo", priority=-1)
    assert heard[3:] == ["queue -1 default"]


@pytest.mark.usefixtures("queues")
def test_a_commit_notifies_of_the_highest_priority_of_each_queue(
    heard: list[str], holder_clock: FakeClock
) -> None:
    tasks = [
        make_task(state="failed", queue=queue, priority=priority)
        for queue, priority in (("default", -3), ("mail", 2), ("default", 1), ("mail", 0))
    ]
    holder_clock.advance(2 * notifier.WINDOW)
    heard.clear()

    Task.objects.filter(pk__in=[task.pk for task in tasks]).retry()

    assert heard == ["queue 1 default", "queue 2 mail"]


@pytest.mark.parametrize("verb", ["retry", "recover", "give back", "enqueue many"])
def test_whatever_makes_a_task_ready_notifies(
    heard: list[str], verb: str, holder_clock: FakeClock
) -> None:
    state = {"retry": "failed", "enqueue many": "ready"}.get(verb, "running")
    task = make_task(state=state, name="jobs.echo")
    holder_clock.advance(2 * notifier.WINDOW)
    heard.clear()

    match verb:
        case "retry":
            Task.objects.failed().retry()
        case "recover":
            expire(task)
            Task.objects.recover()
        case "give back":
            Task.objects.give_back(task, "stopped")
        case "enqueue many":
            Task.objects.enqueue_many("jobs.echo", [{}, {}])

    assert heard == ["queue 0 default"]


def test_a_cancellation_reaches_the_holder_in_this_process_at_once(heard: list[str]) -> None:
    waiting, running = make_task(name="jobs.echo"), make_task(state="running")
    heard.clear()

    Task.objects.filter(pk__in=[waiting.pk, running.pk]).cancel()

    assert heard == [f"task {running.pk}"]


def test_a_handler_hears_of_a_cancellation_without_waiting_for_a_heartbeat(
    handlers: Handlers,
) -> None:
    began = threading.Event()

    def wait(ctx: Any) -> None:
        began.set()
        ctx.wait(PATIENCE)

    handlers["jobs.wait"] = wait
    task = make_task(name="jobs.wait", data={})
    with working(ttl=3000):
        assert began.wait(PATIENCE)
        Task.objects.filter(pk=task.pk).cancel(by="ann")
        wait_for(lambda: row_of(task)["status"] == TaskStatus.CANCELLED)


def test_a_worker_that_is_notified_does_not_wait_for_its_next_look(settings: Settings) -> None:
    settings.TASK_QUEUE = {"POLL_EVERY": 1000, "SWEEP_EVERY": 1000}
    limiter.forget()
    with working() as worker:
        wait_for(lambda: worker.executors.saw_all)
        task = make_task(name="jobs.echo", data={})
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)


def test_a_poller_knows_the_highest_priority_that_it_has_heard_of_in_each_of_its_queues() -> None:
    poller = WorkerProcess(queues=["default", "two words"]).poller
    for message in ("queue 2 default", "queue -4 two words", "queue 1 default", "queue 9 mail"):
        poller.hear(message)

    assert poller.take_heard() == {"default": 2, "two words": -4}
    assert poller.take_heard() == {}


@pytest.mark.usefixtures("on_postgresql")
def test_a_worker_that_hears_of_tasks_that_were_given_back_begins_again_with_those_it_has_passed(
    holder_clock: FakeClock,
) -> None:
    (passed,) = running(1, holder="bob", priority=32767)
    others = make_tasks(3, priority=32767)
    poller = WorkerProcess(queues=["default"]).poller

    def claim() -> list[int]:
        poller.take_heard()
        taken = Task.objects.take("ann", limit=1, queues=["default"], cursor=poller.cursor)
        return [each.id for each in taken]

    assert claim() == [others[0].pk]
    Task.objects.give_back(passed, "its worker died")
    assert claim() == [others[1].pk]
    poller.hear("all")
    assert claim() == [passed.pk]


def test_what_was_not_notified_just_after_something_more_urgent_is_looked_for_as_urgent_too(
    holder_clock: FakeClock,
) -> None:
    """It may go before what waits in the worker. The second look is for it."""
    poller = WorkerProcess(queues=["default"]).poller
    seldom = poller.pause()

    def look() -> dict[str, int]:
        poller.begin_look()
        return poller.take_heard()

    poller.hear("queue 5 default")
    assert look() == {"default": 5}
    assert poller.pause() == pytest.approx(notifier.SECOND_POLL_AFTER)
    poller.hear("queue 2 default")
    holder_clock.advance(notifier.SECOND_POLL_AFTER * 0.9)
    assert look() == {"default": 2}
    holder_clock.advance(notifier.SECOND_POLL_AFTER * 0.2)
    assert look() == {"default": 5}
    assert poller.pause() > seldom / 2
    holder_clock.advance(notifier.SECOND_POLL_AFTER)
    assert look() == {}


@pytest.mark.parametrize("message", ["queue", "queue default", "queue x default", "task", "", "?"])
def test_what_is_no_message_is_passed_over(message: str) -> None:
    poller = WorkerProcess(queues=["default"]).poller

    poller.hear(message)

    assert poller.take_heard() == {}
    assert not poller.wait(0)


def test_a_task_that_is_due_soon_is_not_slept_over(database_clock: Any) -> None:
    rows = Task.objects.home()
    assert rows.next_due_in(5) is None
    make_task(scheduled_at=database_clock.now + timedelta(seconds=9))
    make_task(scheduled_at=database_clock.now + timedelta(seconds=3))
    make_task(scheduled_at=database_clock.now + timedelta(seconds=4))
    make_task(scheduled_at=database_clock.now + timedelta(seconds=2), state="cancelled")
    make_task()

    assert rows.next_due_in(5) == rows.next_due_in(3) == pytest.approx(3)
    assert rows.next_due_in(2.999) is None
    database_clock.advance(3.5)
    assert rows.next_due_in(0.1, since=0.6) == 0  # a look that began before has not seen it
    assert rows.next_due_in(0.1, since=0.4) is None


def test_a_worker_looks_ahead_to_the_moment_itself(database_clock: Any) -> None:
    make_task(state="running")
    make_task(scheduled_at=database_clock.now + timedelta(seconds=3))

    assert Task.objects.are_due_within(3)
    assert not Task.objects.are_due_within(2.999)


# Between processes


@pytest.fixture
def other(on_postgresql: None) -> Iterator[Any]:
    """Another process's connection that listens."""
    other = private_connection("default", 5)
    other.set_autocommit(True)
    with other.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
    yield other
    other.close()


def notes_of(other: Any) -> list[str]:
    """All that it was notified of: notifications come in the order in which they were sent."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'the end')", [CHANNEL])
    found: list[str] = []
    for note in other.connection.notifies(timeout=PATIENCE):
        if note.payload == "the end":
            return found
        if not note.payload.startswith(" "):  # a trial of another's
            found.append(note.payload)
    pytest.fail(f"the end was not heard, only {found}")


def test_other_processes_are_notified_by_one_query_and_once_for_many(
    other: Any,
    heard: list[str],
    holder_clock: FakeClock,
) -> None:
    with CaptureQueriesContext(connection) as queries:
        make_task(name="jobs.echo")
        make_task(name="jobs.echo")

    assert len([query for query in queries if "pg_notify" in query["sql"]]) == 1
    assert notes_of(other) == ["queue 0 default"]


def test_a_notification_that_fails_loses_no_task(
    other: Any, heard: list[str], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OperationalError("too many notifications")

    with connection.execute_wrapper(
        lambda execute, sql, *rest: fail() if "pg_notify" in sql else execute(sql, *rest)
    ):
        task = make_task(name="jobs.echo")

    assert row_of(task)["status"] == TaskStatus.READY
    assert "notifications.unsent" in logged(caplog, notification="queue 0 default")


class Listening:
    """A listener at work, which waits for the arrival of a proof for so many seconds."""

    def __init__(self, arrival: float = 0.05, proof_every: float = Listener.proof_every) -> None:
        self.heard: list[str] = []
        self.ended = threading.Event()
        self.listener = Listener("default", self.heard.append, self.ended)
        self.listener.arrival, self.listener.proof_every = arrival, proof_every
        self.thread = threading.Thread(
            target=run_services, args=([self.listener.service], self.ended)
        )
        self.thread.start()

    def close(self) -> None:
        self.ended.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with closing(Listening()) as listening:
        yield listening


def test_a_listener_hears_what_others_notify_and_heals(
    on_postgresql: None, listening: Listening, caplog: Any
) -> None:
    wait_for(lambda: listening.listener.hears)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, 'queue 0 mail')", [CHANNEL])
        wait_for(lambda: "queue 0 mail" in listening.heard)
        listening.heard.clear()
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query = 'LISTEN leasing_tasks_notify' AND pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
    wait_for(lambda: "notifications.failed" in logged(caplog))
    # What came while nobody listened is looked for.
    wait_for(lambda: "all" in listening.heard)
    wait_for(lambda: listening.listener.hears)


def test_a_database_that_is_away_while_its_listen_connection_opens_is_one_outage(
    on_postgresql: None, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """LISTEN_URL leads around the pooler, which alone is away."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    with (
        caplog.at_level(logging.DEBUG, "tasks"),
        refused_except_to_listen() as restored,
        closing(Listening(arrival=1.0)) as listening,
    ):
        wait_for(lambda: logged(caplog).count("notifications.failed") > 3)
        assert logged(caplog, levelno=logging.WARNING) == ["notifications.failed"]
        assert "outage.ended" not in logged(caplog)
        restored()
        wait_for(lambda: listening.listener.hears)

    assert logged(caplog).count("outage.ended") == 1


def test_a_listener_whose_notifications_do_not_arrive_says_so_once_and_again_when_it_changes(
    on_postgresql: None, holder_clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """By a holder_clock that runs only while nothing arrives: a proof is never late by itself."""
    tries: list[object] = []

    def swallow(*args: Any, **options: Any) -> Iterator[Any]:
        tries.append(options)
        holder_clock.advance(0.02)
        return iter([])

    with closing(Listening(arrival=0.02, proof_every=0.0)) as listening:
        wait_for(lambda: listening.listener.hears)
        for expected in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(psycopg.Connection, "notifies", swallow)
                wait_for(lambda: not listening.listener.hears)
                tries.clear()
                wait_for(lambda: len(tries) > 3)
                assert not listening.listener.hears
                assert logged(caplog).count("notifications.swallowed") == expected
            wait_for(lambda: logged(caplog).count("notifications.arrive") == expected)  # noqa: B023


def test_a_listener_rests_longer_after_each_silence_since_it_last_heard(
    on_postgresql: None, holder_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive = iter([False, False, True, False])
    arrives = False

    def notify_trial(using: str, channel: str) -> str:
        nonlocal arrives
        arrives = next(arrive)
        return leasing_listener.notify_trial(using, channel)

    def read(raw: Any, notifies: Any = psycopg.Connection.notifies, **options: Any) -> Any:
        if arrives:
            return notifies(raw, **options)
        holder_clock.advance(1.0)
        return iter([])

    monkeypatch.setattr(notifier, "notify_trial", notify_trial)
    monkeypatch.setattr(psycopg.Connection, "notifies", read)
    ended = threading.Event()
    listener = Listener("default", lambda message: None, ended)
    listener.proof_every = 0.0

    pauses = [listener.service.step() for _ in range(3)]

    assert pauses == [2, 4, 2]


def test_where_there_are_no_notifications_nobody_listens() -> None:
    if connection.vendor == "postgresql":
        pytest.skip("there are")
    before = threading.active_count()
    WorkerProcess().poller.listen(ServiceThreads(threading.Event()))
    assert threading.active_count() == before


def test_while_notifications_arrive_a_worker_polls_less_and_looks_ahead(
    settings: Settings,
) -> None:
    settings.TASK_QUEUE = {"POLL_EVERY": 20.0}
    poller = WorkerProcess().poller
    assert 16.0 <= poller.pause() <= 20.0
    poller.listener.hears = True
    assert 80.0 <= poller.pause() <= 100.0
    make_task(scheduled_at=database_now("default") + timedelta(seconds=40))
    assert 20.0 < poller.pause() <= 40.0
