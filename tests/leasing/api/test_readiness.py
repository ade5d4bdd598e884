"""``/api/readyz``: told to probes without credentials, and soon whatever the database does."""

from __future__ import annotations

import logging
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


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The database does not answer; returned is a list with an entry for each question."""
    asked: list[str] = []
    end = threading.Event()

    def hang() -> str:
        asked.append("")
        end.wait(30)
        return ""

    monkeypatch.setattr(readiness, "find_unapplied", hang)
    monkeypatch.setattr(readiness, "ANSWER_WITHIN", 0.2)
    yield asked
    end.set()


def test_a_database_that_hangs_is_asked_once_for_many_probes(
    client: Client, hanging: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SHARED_FOR", 60.0)
    with ThreadPoolExecutor(5) as probes:
        answers = list(probes.map(lambda _: read_readiness().missing, range(5)))

    assert answers == [AWAY] * 5
    assert call(client, "GET", "/readyz").body == {"error": AWAY}
    assert len(hanging) == 1
    assert call(client, "GET", "/healthz").status == 200

    cache.forget()  # as a second later
    assert call(client, "GET", "/readyz").status == 503
    assert len(hanging) == 2
