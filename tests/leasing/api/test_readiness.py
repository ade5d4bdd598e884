"""``/api/readyz``: told to probes without credentials, and soon whatever the database does."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError
from django.test import Client

from leasing.api import readiness
from leasing.api.readiness import read_readiness
from leasing.db import unapplied
from leasing.web import cache
from tests.api_calls import call
from tests.leasing.support import FakeClock
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

AWAY = "The database 'default' is not reachable."


def test_a_process_whose_database_answers_is_ready_for_everybody(client: Client) -> None:
    answer = call(client, "GET", "/readyz", REMOTE_ADDR="203.0.113.7")

    assert (answer.status, answer.body) == (200, {"message": "ok"})
    assert client.head("/api/readyz").status_code == 200


def test_a_missing_migration_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unapplied, "_names", lambda label: ["0009_later"])

    answer = call(client, "GET", "/readyz")

    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.body["error"].startswith(
        "The database 'default' lacks migrations of this version (leasing.0009_later, "
    )
    assert client.head("/api/readyz").status_code == 503


def test_why_the_database_cannot_be_reached_is_for_the_log_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> str:
        raise OperationalError("connection to server at 10.0.0.7 failed")

    monkeypatch.setattr(readiness, "find_unapplied", refused)

    assert call(client, "GET", "/readyz").body == {"error": AWAY}
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("django.request", logging.WARNING)
    assert record.getMessage() == f"Not ready: {AWAY} connection to server at 10.0.0.7 failed"


class Hanging:
    """A database that does not answer until ``end`` is set."""

    def __init__(self) -> None:
        self.end = threading.Event()
        #: An entry for each question.
        self.asked: list[str] = []

    def ask(self) -> str:
        self.asked.append("")
        self.end.wait(30)
        return ""


@pytest.fixture
def hanging(shared_readings: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    database = Hanging()
    monkeypatch.setattr(readiness, "find_unapplied", database.ask)
    monkeypatch.setattr(readiness, "ANSWER_WITHIN", 0.2)
    monkeypatch.setattr(readiness, "_latest", None)
    yield database
    database.end.set()
    cache.forget()


def test_a_database_that_hangs_is_asked_once_for_many_probes(
    client: Client, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SHARED_FOR", 60.0)
    with ThreadPoolExecutor(5) as probes:
        answers = list(probes.map(lambda _: read_readiness().missing, range(5)))

    assert answers == [AWAY] * 5
    assert call(client, "GET", "/readyz").body == {"error": AWAY}
    assert len(hanging.asked) == 1
    assert call(client, "GET", "/healthz").status == 200


def test_a_database_that_hangs_for_long_costs_one_thread_and_is_asked_again_once_it_answers(
    client: Client, hanging: Hanging
) -> None:
    for _ in range(3):
        cache.forget()  # as a second later
        assert call(client, "GET", "/readyz").body == {"error": AWAY}
    assert len(hanging.asked) == 1

    hanging.end.set()

    def is_ready() -> bool:
        cache.forget()
        return call(client, "GET", "/readyz").status == 200

    wait_for(is_ready)
    assert len(hanging.asked) == 2


def test_a_question_that_is_never_answered_hides_for_a_minute_that_the_database_is_back(
    client: Client, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(readiness, "system_clock", clock)
    assert call(client, "GET", "/readyz").body == {"error": AWAY}
    monkeypatch.setattr(readiness, "find_unapplied", str)

    for passed, status in ((readiness.FORGOTTEN_AFTER - 1, 503), (1, 200)):
        clock.advance(passed)
        cache.forget()
        assert call(client, "GET", "/readyz").status == status


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_an_answer_to_its_parent(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_readiness().missing == AWAY
    monkeypatch.setattr(readiness, "find_unapplied", str)
    cache.forget()

    child = os.fork()
    if not child:
        threading.Timer(20, os._exit, [2]).start()
        os._exit(0 if not read_readiness().missing else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
