"""``/api/readyz``: told to probes without credentials, and soon whatever the database does."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpResponse
from django.test import Client, RequestFactory

from leasing.api.health import told
from leasing.api.readiness import FORGOTTEN_AFTER, SHARED_FOR, Probe, Readiness
from tests.api_calls import call
from tests.leasing.support import FakeClock
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

AWAY = "The database 'default' is not reachable."


def test_a_process_whose_database_answers_is_ready_for_everybody(client: Client) -> None:
    answer = call(client, "GET", "/readyz", REMOTE_ADDR="203.0.113.7")

    assert (answer.status, answer.body) == (200, {"message": "ok"})
    assert client.head("/api/readyz").status_code == 200


def test_a_missing_migration_is_named() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("leasing", "0001_initial")
    try:
        found = Probe().read()
    finally:
        recorder.record_applied("leasing", "0001_initial")

    assert found.missing.startswith(
        "The database 'default' lacks migrations of this version (leasing.0001_initial"
    )


def test_why_the_database_cannot_be_reached_is_for_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused() -> str:
        raise OperationalError("connection to server at 10.0.0.7 failed")

    answer = told(RequestFactory().get("/api/readyz"), Probe(refused).read())

    assert isinstance(answer, HttpResponse)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert json.loads(answer.content) == {"error": AWAY}
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("django.request", logging.WARNING)
    assert record.getMessage() == f"Not ready: {AWAY} connection to server at 10.0.0.7 failed"


def test_probes_share_an_answer_for_a_second() -> None:
    answers = iter(["first", "second"])
    clock = FakeClock()
    probe = Probe(lambda: next(answers), clock)

    assert probe.read() == probe.read() == Readiness("first")
    clock.advance(SHARED_FOR - 0.01)
    assert probe.read() == Readiness("first")
    clock.advance(0.01)
    assert probe.read() == Readiness("second")


class Hanging:
    """A database that answers no question of this process until ``end`` is set, and a probe."""

    def __init__(self) -> None:
        self.end, self._process = threading.Event(), os.getpid()
        #: An entry for each question.
        self.asked: list[str] = []
        self.clock = FakeClock()
        self.probe = Probe(self._ask, self.clock, answer_within=0.2)

    def _ask(self) -> str:
        self.asked.append("")
        if os.getpid() == self._process:
            self.end.wait(30)
        return ""

    def later(self, seconds: float) -> Readiness:
        self.clock.advance(seconds)
        return self.probe.read()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    database = Hanging()
    yield database
    database.end.set()


def test_a_database_that_hangs_is_asked_once_for_many_probes(hanging: Hanging) -> None:
    with ThreadPoolExecutor(5) as probes:
        answers = list(probes.map(lambda _: hanging.probe.read().missing, range(5)))

    assert answers == [AWAY] * 5
    assert hanging.later(SHARED_FOR / 2).missing == AWAY
    assert len(hanging.asked) == 1


def test_a_database_that_hangs_for_long_costs_one_thread_and_is_asked_again_once_it_answers(
    hanging: Hanging,
) -> None:
    for _ in range(3):
        assert hanging.later(SHARED_FOR).missing == AWAY
    assert len(hanging.asked) == 1

    hanging.end.set()
    wait_for(lambda: not hanging.later(SHARED_FOR).missing)
    assert len(hanging.asked) == 2


def test_a_question_that_is_never_answered_hides_for_a_minute_that_the_database_is_back(
    hanging: Hanging,
) -> None:
    assert hanging.probe.read().missing == AWAY

    assert hanging.later(FORGOTTEN_AFTER - 1).error == "it has not answered an earlier question yet"
    assert len(hanging.asked) == 1
    hanging.later(1)
    assert len(hanging.asked) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_an_answer_to_its_parent(hanging: Hanging) -> None:
    assert hanging.probe.read().missing == AWAY
    hanging.clock.advance(SHARED_FOR)

    child = os.fork()
    if not child:
        threading.Timer(20, os._exit, [2]).start()
        os._exit(0 if not hanging.probe.read().missing else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
