"""Records carry fields, and hostile text in them makes no line of its own."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from leasing.exceptions import LeaseLost
from leasing.logs import LONGEST, JSONFormatter, LineFormatter
from leasing.models import Lease
from leasing.runtime.event_lines import log as lease_log
from leasing.runtime.event_logger import UNKNOWN, Event
from tasks.client.log import log as client_log
from tasks.exceptions import GiveUp
from tasks.log import COLUMNS, task_fields
from tasks.log import log as task_log
from tasks.models import Queue, Task
from tests.factories import grant_id_of, make_lease, make_task
from tests.leasing.support import expire
from tests.plugin import ROOT

FORGED = "no luck\n2030-01-01 ERROR leasing: all is lost\x1b[2J\u2028x\ud800"


def written(record: logging.LogRecord) -> dict[str, Any]:
    line = JSONFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    said: dict[str, Any] = json.loads(line)
    return said


class Trial:
    trial_event = Event("leasing.trial", logging.WARNING, "It failed: %(error)s, %(error)r")


log = Trial()


# Fields


@pytest.mark.django_db
def test_a_lease_is_logged_with_who_has_what(caplog: pytest.LogCaptureFixture) -> None:
    lease = make_lease(resource="crane:1", holder="ann")

    said = written(caplog.records[-1])

    assert said.pop("time").endswith("+00:00")
    assert said == {
        "level": "INFO",
        "logger": "leasing",
        "message": f"ann acquired crane:1, token {lease.fencing_token}",
        "event": "lease.acquired",
        "resource": "crane:1",
        "holder": "ann",
        "fencing_token": lease.fencing_token,
        "grants": 1,
    }


@pytest.mark.django_db
def test_a_revocation_is_logged_with_who_and_why(caplog: pytest.LogCaptureFixture) -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    Lease.objects.revoke("on fire", "root")
    with pytest.raises(LeaseLost):
        Lease.objects.release(lease)

    revoked, refused = map(written, caplog.records[-2:])

    assert (revoked["event"], revoked["actor"], revoked["reason"]) == (
        "lease.revoked",
        "root",
        "on fire",
    )
    assert (refused["event"], refused["verb"]) == ("lease.refused", "release")


@pytest.mark.django_db
def test_a_task_is_logged_with_its_attempt(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(name="jobs.echo", data={"value": "xyzzy"}, state="running", holder="ann")
    Task.objects.fail(task, GiveUp("no hope"))

    said = written(caplog.records[-1])

    assert (
        said.items()
        >= {
            "event": "task.failed",
            "task_id": task.pk,
            "task_name": task.name,
            "queue": task.queue,
            "attempt": 1,
            "max_attempts": 10,
            "holder": "ann",
            "fencing_token": task.fencing_token,
            "error": "GiveUp: no hope",
        }.items()
    )


@pytest.mark.django_db
def test_what_is_logged_of_a_task_holds_neither_payload_nor_grant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "leasing"), caplog.at_level(logging.DEBUG, "tasks"):
        task = make_task(name="jobs.echo", data={"value": "xyzzy"}, state="running", holder="ann")
        grant = task.grant_id
        Task.objects.complete(task, {"pin": "plugh"})
        lease = make_lease()
        Lease.objects.renew(lease)

    said = "".join(JSONFormatter().format(record) for record in caplog.records)

    assert caplog.records
    assert not [
        secret
        for secret in (
            str(grant),
            grant_id_of(lease).hex,
            str(lease.grant_id),
            "xyzzy",
            "plugh",
        )
        if secret in said
    ]


@pytest.mark.django_db
def test_a_recovered_task_is_logged_with_the_holder_that_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expire(make_task(state="running", holder="ann"))
    Task.objects.recover()

    said = written(caplog.records[-1])

    assert (said["event"], said["holder"]) == ("task.recovered", "ann")


@pytest.mark.django_db
def test_a_queue_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    Queue.objects.pause("default", by="root", reason="audit")

    said = written(caplog.records[-1])

    assert (said["event"], said["queue"], said["actor"]) == ("queue.paused", "default", "root")


@pytest.mark.django_db
def test_a_column_that_was_not_read_costs_no_query(
    django_assert_num_queries: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make_task()
    task = Task.objects.only("id", "name").get()

    with django_assert_num_queries(0):
        said = task_fields(task)

    assert said["queue"] is None


TABLES = {"leasing": lease_log, "tasks": task_log, "tasks/client": client_log}
#: What of a message a row brings, and what has a text where a field is empty.
OF_ROWS = {*COLUMNS, "handler", "resource", "fencing_token", *UNKNOWN}


def test_each_call_brings_the_fields_of_its_message() -> None:
    """By the source, as most lines are of rare misfortunes."""
    wrong = []
    for package, table in TABLES.items():
        for file in files_of(package):
            for call in filter(is_logging, ast.walk(ast.parse(file.read_text()))):
                event: Event = getattr(table, ast.unparse(call.func).removeprefix("log."))
                brought = {word.arg for word in call.keywords} | (OF_ROWS if call.args else set())
                if missing := set(re.findall(r"%\((\w+)\)", event.message)) - brought:
                    wrong.append((file.name, call.lineno, missing))

    assert wrong == []


def test_no_table_has_an_event_that_nothing_logs() -> None:
    unused = []
    for package, table in TABLES.items():
        text = "".join(file.read_text() for file in files_of(package))
        events = {name for name, row in vars(type(table)).items() if isinstance(row, Event)}
        unused += sorted(events - {*re.findall(r"\blog\.(\w+)", text)})

    assert unused == []


def files_of(package: str) -> list[Path]:
    """The modules of a package, but for packages in it that have a table of their own."""
    apart = [ROOT / other for other in TABLES if other.startswith(f"{package}/")]
    files = (ROOT / package).rglob("*.py")
    return [file for file in files if not any(map(file.is_relative_to, apart))]


def is_logging(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
    )


def test_an_event_is_named_as_the_flow_calls_it() -> None:
    assert log.trial_event.name == "trial.event"


# A call


def test_with_the_level_off_nothing_is_made_of_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    class Dear:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    with caplog.at_level(logging.WARNING, "leasing"):
        log.trial_event(level=logging.INFO, error=Dear())

    assert caplog.records == []


def test_a_field_that_says_nothing_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log.trial_event(error="so", holder="", reason=None, attempt=0)

    assert written(caplog.records[-1]).keys() == {
        *("time", "level", "logger", "message", "event", "error", "attempt")
    }


def test_a_record_names_the_line_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    log.trial_event(error="here")

    record = caplog.records[-1]
    assert record.funcName == "test_a_record_names_the_line_that_logged"


def test_a_task_is_logged_by_its_short_name(caplog: pytest.LogCaptureFixture) -> None:
    log.trial_event(error="so", resource="/api/tasks/17")

    assert written(caplog.records[-1])["resource"] == "task:17"


# Hostile text


@pytest.mark.parametrize("said", [FORGED, ValueError(FORGED)], ids=["text", "error"])
def test_whatever_formats_it_a_record_stays_in_its_line(
    said: object, caplog: pytest.LogCaptureFixture
) -> None:
    log.trial_event(error=said)

    record = caplog.records[-1]
    lines = logging.Formatter("%(levelname)s %(message)s %(error)s").format(record)
    assert lines.isprintable()
    assert "no luck\\x0a2030" in lines


@pytest.mark.django_db
def test_the_error_of_a_task_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(state="running", holder="ann")
    Task.objects.fail(task, GiveUp("no hope\nERROR leasing: forged"))

    assert len(caplog.messages[-1].splitlines()) == 1


def forging_record() -> logging.LogRecord:
    try:
        raise ValueError(FORGED)
    except ValueError:
        return logging.LogRecord(
            "site", logging.ERROR, "site.py", 1, "it failed:\n%s", (FORGED,), sys.exc_info()
        )


def test_json_holds_a_record_of_any_logger_in_one_line() -> None:
    said = written(forging_record())

    assert said["message"] == f"it failed:\n{FORGED}"
    assert said["traceback"].startswith("Traceback (most recent call last):\n")


def test_lines_of_a_traceback_do_not_look_like_records() -> None:
    first, *more = LineFormatter("%(levelname)s %(message)s").format(forging_record()).split("\n")

    assert first.startswith("ERROR it failed:\\x0ano luck\\x0a2030")
    assert len(more) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in more)


def test_json_masks_secrets_and_keeps_what_is_no_json_as_text() -> None:
    record = logging.makeLogRecord(
        {"api_key": "abc", "ratio": float("nan"), "steps": ["x"], "n": 1, "fencing_token": 7}
        | {"broker": "redis://ann:hunter2@mq", "brokers": ["redis://ann:hunter2@mq"]}
    )

    said = written(record)

    assert said["api_key"] != "abc"
    assert (said["ratio"], said["steps"], said["n"]) == ("nan", "['x']", 1)
    assert said["fencing_token"] == 7
    assert "hunter2" not in said["broker"] + said["brokers"]


def test_json_cuts_what_is_endless() -> None:
    said = written(logging.makeLogRecord({"msg": "x" * 10**6}))

    assert len(said["message"]) < LONGEST + 10
