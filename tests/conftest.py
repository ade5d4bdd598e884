"""Fixtures that every test may use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from django.core.signals import request_started
from django.db import connection
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings

from leasing.holding.keeper import EXIT_PATIENCE, keeper
from leasing.runtime import aio
from leasing.runtime.threads import outage
from leasing.web import cache
from tests.brokers import Broker, NoBroker, serve_rabbitmq, serve_redis
from tests.emptying import empty
from tests.plugin import DATABASE, ROOT
from tests.preloaded import Preloaded
from tests.processes import BOUND, Process, Warm

# How long an example takes says more of the machine than of what is tried.
settings.register_profile(
    "any machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


class Spawn(Protocol):
    """Start ``python *args`` on the test database; keywords are added to its environment."""

    def __call__(self, args: Sequence[str], **env: str) -> Process: ...


@pytest.fixture(scope="session")
def django_db_keepdb(request: pytest.FixtureRequest) -> bool:
    """Leave a throw-away database to its end: dropping it fails while a thread is connected."""
    return request.config.stash[DATABASE].throw_away or bool(request.config.getvalue("reuse_db"))


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The usual database, emptied in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty)
        yield


@pytest.fixture(autouse=True)
def _keeper_at_rest(_django_db_helper: None) -> Iterator[None]:
    """Wait until the keeper has finished with each test, before the tables are emptied: its late
    writes would deadlock with that, or appear in the next test."""
    yield
    _let_threads_of_async_code_end()
    # A loaded machine takes its time; in a transaction of the test's nobody empties tables, and on
    # SQLite it keeps the keeper from writing.
    keeper.stop(EXIT_PATIENCE if connection.in_atomic_block else 10.0)


def _let_threads_of_async_code_end() -> None:
    """Wait for threads that a cancelled coroutine has begun, whose work goes on and may be undone
    after."""
    executor = aio._executor
    if not executor._threads:
        return
    with suppress(threading.BrokenBarrierError, RuntimeError):  # a test's own may be shut down
        for _ in range(2):
            meeting = threading.Barrier(executor._max_workers + 1, timeout=5)
            for _ in range(executor._max_workers):
                executor.submit(meeting.wait)
            meeting.wait()


@pytest.fixture(autouse=True)
def _no_shared_reading(request: pytest.FixtureRequest) -> Iterator[None]:
    """Polls see what the test has just done."""

    def forget(**_named: Any) -> None:
        cache.forget()

    if "shared_readings" not in request.fixturenames:
        request_started.connect(forget)
    yield
    request_started.disconnect(forget)
    cache.forget()


@pytest.fixture
def shared_readings() -> None:
    """Polls share what another has read a moment ago, as where the pages are served."""


@pytest.fixture(autouse=True)
def _no_outage() -> None:
    """Nothing fails already: what a test has let fail may never succeed any more."""
    outage.forget()


@pytest.fixture(autouse=True)
def leases_by_hand() -> None:
    """In place of the plugin's: this suite tests the real clocks and the real keeper, and takes
    time into its hands where it says so."""


@pytest.fixture
def own_celery_tasks() -> Iterator[None]:
    """Celery tasks that code of a page declares are gone after the test: each would be made again
    by every application that is made later in this process."""
    yield
    from celery import _state  # takes its time

    for callback in set(_state._on_app_finalizers):
        closed_over = [cell.cell_contents for cell in callback.__closure__ or ()]
        if any(getattr(each, "__module__", "") is None for each in closed_over):  # of no module
            _state._on_app_finalizers.discard(callback)


@pytest.fixture
def process_env(request: pytest.FixtureRequest, transactional_db: None) -> dict[str, str]:
    """The environment of a process that works on the test database.

    The test runs without a surrounding transaction, or the process would see none of its rows.
    """
    database = request.config.stash[DATABASE]
    return {
        **os.environ,
        "DATABASE_URL": database.named(str(connection.settings_dict["NAME"])),
        "PYTHONWARNINGS": "error",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture(scope="session")
def _preloaded() -> Iterator[Preloaded]:
    with closing(Preloaded(BOUND, ROOT)) as preloaded:
        yield preloaded


@pytest.fixture
def spawn(
    _processes: list[Process], process_env: dict[str, str], tmp_path: Path, _preloaded: Preloaded
) -> Spawn:
    """Starts processes on the test database, and ends them all with the test.

    ``spawn(["manage.py", "run_worker"], LEASING_TTL="2")`` returns a ``Process``. What each
    printed is shown when the test fails. Without variables of its own the process is forked from
    one that has Django imported; a test of how a process starts takes ``spawn_cold``.
    """

    def start(args: Sequence[str], **env: str) -> Process:
        log = tmp_path / f"process-{len(_processes)}.log"
        environment = {**process_env, **env}
        if env or not _preloaded.can_start(args, environment):
            _processes.append(Process(args, environment, log))
        else:
            _processes.append(Warm(args, environment, log, _preloaded))
        return _processes[-1]

    return start


@pytest.fixture
def spawn_cold(_processes: list[Process], process_env: dict[str, str], tmp_path: Path) -> Spawn:
    """Starts a new Python, as ``spawn`` does if it must."""

    def start(args: Sequence[str], **env: str) -> Process:
        log = tmp_path / f"process-{len(_processes)}.log"
        _processes.append(Process(args, {**process_env, **env}, log))
        return _processes[-1]

    return start


@pytest.fixture
def _processes() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.resume()
            process.terminate()  # all at once, so that their ends do not add up
    for process in processes:
        process.end()
        print(f"--- {process.name}, ended {process.returncode}\n{process.output}")


@pytest.fixture(scope="session")
def _redis() -> Iterator[Broker]:
    with _served(serve_redis) as broker:
        yield broker


@pytest.fixture(scope="session")
def _rabbitmq() -> Iterator[Broker]:
    with _served(serve_rabbitmq) as broker:
        yield broker


@contextmanager
def _served(serve: Callable[[], AbstractContextManager[Broker]]) -> Iterator[Broker]:
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(serve())
        except NoBroker as error:
            pytest.skip(str(error))
        yield broker


@pytest.fixture
def redis_broker(_redis: Broker) -> Iterator[Broker]:
    """The suite's redis-server, which a test may stop, kill and pause. Name queues apart."""
    yield _redis
    _redis.heal()


@pytest.fixture
def rabbitmq_broker(_rabbitmq: Broker) -> Iterator[Broker]:
    """The suite's RabbitMQ, which a test may stop, kill and pause. Name queues apart."""
    yield _rabbitmq
    _rabbitmq.heal()
