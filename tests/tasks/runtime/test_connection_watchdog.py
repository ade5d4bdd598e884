"""Answers of the database that never come: no thread of a worker waits for good."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection, connections, transaction
from pytest_django import Settings

from leasing.db import connection_watchdog as watchdog
from leasing.db.connection_watchdog import (
    Server,
    Silence,
    WatchedConnection,
    answers,
    watch_answers,
)
from leasing.models import Lease
from tasks.celery.consuming import consume
from tasks.generator import Generator
from tasks.maintenance import recovery, sampling, scheduler
from tasks.models import OutboxMessage, Schedule, Task, Worker
from tasks.outbox import publish
from tasks.runtime.connection import handlers_limited, lasting_connection
from tests.brokers import free_ports
from tests.factories import make_task, make_tasks
from tests.limits import Limits
from tests.logs import logged
from tests.plugin import DATABASE
from tests.postgres import find_account
from tests.processes import wait_for
from tests.proxy import Proxy, TcpProxy
from tests.races.test_losing import socket_folder
from tests.tasks.support import Handlers

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="there is no network to SQLite"),
]

PATIENCE = 20.0
#: Of a statement that is to be cut off, and of one that is not.
SHORT, LONG = {"ANSWER_TIMEOUT": 0.05, "HANDLER_ANSWER_TIMEOUT": 0.05}, {"ANSWER_TIMEOUT": PATIENCE}


@pytest.fixture
def network(
    request: pytest.FixtureRequest,
    thread: ThreadPoolExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> Iterator[Proxy]:
    """Between the database and connections that are still to be made. Its end ends what waits."""
    limits(longest_look=0.01)
    folder = socket_folder(request.config.stash[DATABASE].url)
    if not folder:
        pytest.skip("the server that was given has no socket here")
    proxy = Proxy(tmp_path, Path(folder))
    monkeypatch.setitem(connections.settings["default"], "HOST", str(proxy.folder))
    yield proxy
    proxy.close()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
        pool.submit(connections.close_all).result(PATIENCE)


def claim() -> list[Any]:
    return Task.objects.take("ann", limit=9)


def complete(claimed: list[Any]) -> None:
    Task.objects.complete_claimed([(each, 1) for each in claimed])


def fail(claimed: list[Any]) -> None:
    Task.objects.fail_many([(each.task, "no paper") for each in claimed])


def hand_back(claimed: list[Any]) -> None:
    Task.objects.give_back_many([each.task for each in claimed], "no paper")


def recover(claimed: list[Any]) -> None:
    Task.objects.update(expires_at="2020-01-01T00:00Z")
    recovery.sweep()


def generate(claimed: list[Any]) -> None:
    # A name of its own: a grant or a release whose answer never came may have left it held.
    with Lease.objects.hold(f"generator:{uuid4()}") as hold:
        Generator(name="ann").batch(hold, 1)


def sample(claimed: list[Any]) -> None:
    sampling.Sampler().turn()


def rest(claimed: list[Any]) -> None:
    Task.objects.are_due_within(1)
    Task.objects.next_lapse_in()


def register(claimed: list[Any]) -> None:
    Worker.objects.register("ann", hostname="here", pid=1, handlers={}, queues=[], slots={})
    Worker.objects.seen("ann")
    Worker.objects.sign_off("ann")


def relay(claimed: list[Any]) -> None:
    Task.objects.mark_published(Task.objects.window("default", 9, 60).keys, 60)
    messages = list(OutboxMessage.objects.due())
    with transaction.atomic():
        OutboxMessage.objects.mark_published([each.pk for each in messages])


#: What threads of a worker, a generator and a relay send, given tasks that were just claimed.
WORK: dict[str, Callable[[list[Any]], object]] = {
    "claim": lambda claimed: claim(),
    "complete": complete,
    "fail": fail,
    "give back": hand_back,
    "recover": recover,
    "examine": lambda claimed: recovery.examine(),
    "schedule": lambda claimed: scheduler.serve_due(),
    "sample": sample,
    "rest": rest,
    "register": register,
    "generate": generate,
    "relay": relay,
}


@pytest.mark.parametrize("work", WORK.values(), ids=list(WORK))
def test_no_statement_waits_for_good_whose_answer_never_comes(
    work: Callable[[list[Any]], object],
    network: Proxy,
    thread: ThreadPoolExecutor,
    settings: Settings,
) -> None:
    """Whichever of its statements it is: the answers to so many come, and then no more."""

    def run(answered: int) -> bool:
        settings.TASK_QUEUE = LONG
        with lasting_connection():
            Task.objects.all().delete()
            make_tasks(2, name="jobs.echo", data={})
            publish("mails", {})
            Schedule.objects.update(next_at="2020-01-01T00:00Z")
            claimed = claim()
            network.swallow_replies(answered)
            settings.TASK_QUEUE = SHORT
            try:
                work(claimed)
            except OperationalError:
                return True
            return False

    cut_off = takewhile(bool, (thread.submit(run, n).result(PATIENCE) for n in range(50)))
    assert 0 < len(list(cut_off)) < 50


def test_a_thread_that_is_to_stop_has_a_last_call(
    network: Proxy, thread: ThreadPoolExecutor, settings: Settings, limits: Limits
) -> None:
    limits(stop_timeout=0.05)
    settings.TASK_QUEUE = LONG
    stopping, sent = threading.Event(), threading.Event()

    def work() -> None:
        with lasting_connection(stopping):
            claim()
            network.swallow_replies()
            sent.set()
            claim()

    working = thread.submit(work)
    assert sent.wait(PATIENCE)
    assert not working.done()
    stopping.set()

    with pytest.raises(OperationalError):
        working.result(PATIENCE)


@pytest.mark.parametrize("is_open", [False, True], ids=["new connection", "open connection"])
def test_what_a_handler_waits_for_in_a_celery_worker_is_cut_off_too(
    is_open: bool,
    network: Proxy,
    thread: ThreadPoolExecutor,
    settings: Settings,
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TASK_QUEUE = {"CELERY_QUEUES": ("default",), "HANDLER_ANSWER_TIMEOUT": 0.2}
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)

    def handle(ctx: Any) -> None:
        network.swallow_replies()
        with pytest.raises(OperationalError):
            Lease.objects.exists()

    def work() -> str:
        task = make_task(name="jobs.ask", data={})
        if not is_open:
            connections.close_all()
        consume(task.pk, "default")
        task.refresh_from_db()
        return str(task.status)

    handlers["jobs.ask"] = handle
    assert thread.submit(work).result(PATIENCE) == "succeeded"


def unreadable() -> float:
    raise ValueError("no number")


def test_a_limit_that_cannot_be_read_costs_no_other_connection(
    thread: ThreadPoolExecutor,
    request: pytest.FixtureRequest,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.TASK_QUEUE = SHORT
    broken = connections.create_connection("default")
    watch_answers(broken, unreadable, "LIMIT")
    broken.ensure_connection()
    request.addfinalizer(broken.close)
    network: Proxy = request.getfixturevalue("network")

    def wait() -> None:
        with lasting_connection():
            claim()
            network.swallow_replies()
            claim()

    for _ in range(2):
        with pytest.raises(OperationalError):
            thread.submit(wait).result(PATIENCE)
    assert logged(caplog).count("connection.unlimited") == 1


def connect() -> None:
    other = connections.create_connection("default")
    watch_answers(other, lambda: None, "LIMIT")
    other.ensure_connection()
    other.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "ensure_running", [lambda: answers.ensure_running(), connect], ids=["tended", "connected"]
)
def test_connections_are_looked_after_again_when_their_thread_has_ended(
    ensure_running: Callable[[], object],
    thread: ThreadPoolExecutor,
    network: Proxy,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TASK_QUEUE = SHORT

    def wait() -> None:
        with lasting_connection():
            with monkeypatch.context() as patched:
                patched.setattr(WatchedConnection, "look", lambda line: sys.exit())
                claim()
                wait_for(lambda: answers._thread and not answers._thread.is_alive())
            ensure_running()
            network.swallow_replies()
            claim()

    with pytest.raises(OperationalError):
        thread.submit(wait).result(PATIENCE)


@pytest.fixture
def asks_soon(limits: Limits) -> None:
    """The server is asked about a connection that is silent for a moment."""
    limits(ask_after=0.05, ask_every=0.01)


@pytest.mark.usefixtures("asks_soon")
@pytest.mark.parametrize("lost", ["replies", "requests"])
@pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
def test_a_lost_answer_is_found_long_before_its_limit(
    lost: str,
    block: Callable[[], AbstractContextManager[object]],
    network: Proxy,
    thread: ThreadPoolExecutor,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.TASK_QUEUE = {"HANDLER_ANSWER_TIMEOUT": None}

    def handle() -> None:
        with block():
            Lease.objects.exists()
            network.swallow_replies() if lost == "replies" else network.lose_requests()
            Lease.objects.exists()

    with handlers_limited(), pytest.raises(OperationalError):
        thread.submit(handle).result(PATIENCE)

    assert "connection.answer_lost" in logged(caplog)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, datetime]]:
    """The sessions that each question has found idle."""
    found: list[dict[int, datetime]] = []
    ask = watchdog._idle_sessions

    def note(*args: Any) -> dict[int, datetime]:
        found.append(ask(*args))
        return found[-1]

    monkeypatch.setattr(watchdog, "_idle_sessions", note)
    return found


def test_a_statement_that_the_server_is_at_is_not_cut_off(
    asked: list[dict[int, datetime]],
    thread: ThreadPoolExecutor,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TASK_QUEUE = {"HANDLER_ANSWER_TIMEOUT": None}

    def ask(statement: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0]

    def is_waiting() -> bool:
        return bool(
            ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        )

    with handlers_limited():
        ask("SELECT 1 FROM (SELECT pg_advisory_lock(7)) AS locked")
        try:
            statement = "SELECT 7 FROM (SELECT pg_advisory_lock(7)) AS locked"
            handling = thread.submit(ask, statement)
            wait_for(is_waiting)
            # Only now: on a loaded machine a server may need as long to begin.
            with monkeypatch.context() as patched:
                patched.setattr(watchdog, "ASK_AFTER", 0.05)
                patched.setattr(watchdog, "ASK_EVERY", 0.01)
                wait_for(lambda: len(asked) >= 5)
        finally:
            ask("SELECT pg_advisory_unlock(7)")
        assert handling.result(PATIENCE) == 7
    assert asked[:5] == [{}] * 5


@pytest.fixture
def pooled(
    asks_soon: None,
    thread: ThreadPoolExecutor,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> Iterator[TcpProxy]:
    """Between PgBouncer, in transaction mode, and connections that are still to be made."""
    limits(longest_look=0.01)
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    folder = socket_folder(request.config.stash[DATABASE].url)
    if program is None or not folder:
        pytest.skip("no pgbouncer, or the server that was given has no socket here")
    (port,) = free_ports(1)
    config = tmp_path / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={folder} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\nignore_startup_parameters = options\n"
    )
    config.chmod(0o644)
    pooler = subprocess.Popen(
        [*find_account().prefix, program, "-q", str(config)], stderr=subprocess.DEVNULL
    )
    proxy = TcpProxy(port)
    for key, value in zip(("HOST", "PORT"), proxy.address.split(":"), strict=True):
        monkeypatch.setitem(connections.settings["default"], key, value)
    try:
        wait_for(lambda: is_open(port))
        yield proxy
    finally:
        proxy.close()
        pooler.terminate()
        pooler.wait()


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_behind_a_pooler_the_limit_alone_decides(
    pooled: TcpProxy,
    asked: list[dict[int, datetime]],
    thread: ThreadPoolExecutor,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.TASK_QUEUE = {"HANDLER_ANSWER_TIMEOUT": None}

    def handle() -> None:
        Lease.objects.exists()
        pooled.swallow_replies()
        Lease.objects.exists()

    with handlers_limited():
        handling = thread.submit(handle)
        wait_for(lambda: len(asked) >= 5)
        assert not handling.done()
        settings.TASK_QUEUE = SHORT
        with pytest.raises(OperationalError):
            handling.result(PATIENCE)

    assert asked == [{}] * len(asked)
    assert "connection.answer_lost" not in logged(caplog)


def test_a_session_is_known_by_its_number_and_its_age(thread: ThreadPoolExecutor) -> None:
    """Another server behind the same address may have one of that number."""

    def find(pid: int, age: float) -> list[int]:
        connection.ensure_connection()
        silence = Silence(Server("default", "", "", 0), pid, age, since=0)
        return list(watchdog._idle_sessions(connections["default"], [silence]))

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, extract(epoch FROM clock_timestamp() - backend_start)::float"
            " FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )
        pid, age = cursor.fetchone()

    ages = {age: [pid], age + 60: [], age - 60: []}
    assert {each: thread.submit(find, pid, each).result(PATIENCE) for each in ages} == ages


class Raw:
    """A connection of the driver's. ``wait`` does as a test says while it waits."""

    closed = False
    info: Any = None

    def __init__(self, during: Callable[[Callable[[int], object]], None]) -> None:
        self._during = during

    def wait(self, steps: Any) -> None:
        next(steps)
        self._during(steps.send)


def test_a_line_is_hung_up_if_it_was_idle_in_one_silence_since_one_moment_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    hung_up: list[Any] = []
    monkeypatch.setattr(watchdog, "system_clock", lambda: now)
    monkeypatch.setattr(watchdog, "hang_up_raw", hung_up.append)
    earlier, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

    def judge(idle_since: datetime | None, silent_since: float) -> bool:
        server = Server("default", "", "", 0)
        line.judge(Silence(server, pid=1, age=0, since=silent_since), idle_since)
        return bool(hung_up)

    def during(be_ready: Callable[[int], object]) -> None:
        nonlocal now
        assert not judge(earlier, 100)
        assert not judge(None, 100), "its session is at work"
        assert not judge(earlier, 100)
        assert not judge(later, 100), "its session was at work meanwhile"
        now = 101.0
        be_ready(1)
        assert not judge(later, 100), "something came after the question was sent"
        be_ready(0)
        assert not judge(later, 101), "something came between the questions"
        assert judge(later, 101)

    raw: Any = Raw(during)
    line = WatchedConnection(raw, lambda: None, "LIMIT", "default")
    raw.wait(repeat_steps())
    judge(later, 101)
    assert hung_up == [raw], "it does not wait any more"


def repeat_steps() -> Any:
    while True:
        yield 1


@pytest.mark.parametrize(
    ("status", "unread", "silent_for", "is_asked"),
    [
        ("ACTIVE", b"", 5.0, True),
        ("ACTIVE", b"", 4.9, False),
        ("ACTIVE", b"INSERT", 5.0, False),
        ("IDLE", b"", 5.0, False),
    ],
    ids=["silent", "not for long", "a statement on its way", "waiting for notifications"],
)
def test_a_server_is_asked_about_a_statement_that_it_has_and_that_is_silent_for_long(
    status: str, unread: bytes, silent_for: float, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(watchdog, "system_clock", lambda: now)
    server = Server("default", "db", "10.0.0.1", 5432)

    def during(be_ready: Callable[[int], object]) -> None:
        nonlocal now
        now += silent_for
        expected = Silence(server, pid=17, age=silent_for, since=100.0)
        assert line.silence == (expected if is_asked else None)

    here, there = socket.socketpair()
    with here, there:
        here.send(unread)
        raw: Any = Raw(during)
        raw.fileno = here.fileno
        raw.info = SimpleNamespace(
            transaction_status=SimpleNamespace(name=status),
            **{"host": "db", "hostaddr": "10.0.0.1", "port": 5432, "backend_pid": 17},
        )
        line = WatchedConnection(raw, lambda: None, "LIMIT", "default")
        assert line.silence is None, "it waits for nothing"
        raw.wait(repeat_steps())
