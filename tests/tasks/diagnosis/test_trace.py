"""The trace of a task: what its rows and the audit have of it, in one order."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from leasing import audit
from leasing.exceptions import LeaseLost
from leasing.functions import DbNow
from tasks.diagnosis import diagnose
from tasks.diagnosis.trace import Event, read_trace
from tasks.models import Task
from tests.factories import claimed, make_task
from tests.fixtures import client_with
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire
from tests.tasks.support import row_of

pytestmark = pytest.mark.django_db

VIEW, AUDIT = "leasing_tasks.view_task", "leasing.view_auditentry"
viewer = client_with(VIEW)
auditor = client_with(VIEW, AUDIT, name="ada")


def traced(task: Task) -> list[Event]:
    return read_trace(Task.objects.get(pk=task.pk), with_actions=True)


def claim(task: Task, holder: str) -> Task:
    Task.objects.filter(pk=task.pk).update(scheduled_at=row_of(task)["created_at"])
    return claimed(task, holder)


@pytest.fixture
def task(request: pytest.FixtureRequest) -> Task:
    """A task with a lost, a refused, a snoozed, a failed and a good attempt."""
    # SQLite's clock shows milliseconds; the defaults of PostgreSQL's columns know no other clock.
    clock: DatabaseClock | None = None
    if connection.vendor == "sqlite":
        clock = request.getfixturevalue("database_clock")

    def tick() -> None:
        if clock is not None:
            clock.advance(1)

    task = make_task(parent=make_task(), data={"sleep_duration_seconds": 1})
    tick()
    lost = claim(task, "ann")
    tick()
    expire(lost)
    Task.objects.filter(pk=task.pk).recover()
    tick()
    with pytest.raises(LeaseLost):
        Task.objects.complete(lost, {"late": True})
    Task.objects.finish_step(mine := claim(task, "bob"), "fetch", {"secret": 7})
    tick()
    Task.objects.snooze(mine, 5, "the service is busy")
    tick()
    mine = claim(task, "bob")
    tick()
    Task.objects.fail(mine, ValueError("no luck\nat all"))
    tick()
    mine = claim(task, "cem")
    tick()
    Task.objects.fail(mine, ValueError("no hope"))
    Task.objects.filter(pk=task.pk).update(status="failed", processed_at=DbNow())
    tick()
    with audit.recording("olga", "retry", Task, keys=[task.pk], reason="try", via="page") as act:
        act.changed = Task.objects.filter(pk=task.pk).retry(by=act.by)
    tick()
    mine = claim(task, "dan")
    tick()
    mine = Task.objects.heartbeat(Task.objects.heartbeat(mine))
    Task.objects.progress(mine, {"done": 3, "total": 5, "password": "x"})
    tick()
    Task.objects.complete(mine, {"ok": True})
    return task


def test_a_trace_has_every_event_with_its_attempt_in_one_order(task: Task) -> None:
    events = traced(task)

    assert [(each.event, each.attempt, each.holder, each.text) for each in events] == [
        (
            "enqueued",
            None,
            "",
            f"in the queue default, as a child of task:{row_of(task)['parent_id']}",
        ),
        ("claimed", 1, "ann", ""),
        ("lost", 1, "ann", "ann did not renew its lease in time"),
        ("refused", 1, "ann", "a late result"),
        ("claimed", 2, "bob", ""),
        ("step", 2, "bob", "fetch"),
        ("snoozed", 2, "bob", "the service is busy"),
        ("claimed", 2, "bob", ""),
        ("failed", 2, "bob", "ValueError: no luck"),
        ("claimed", 3, "cem", ""),
        ("failed", 3, "cem", "ValueError: no hope"),
        ("retry", None, "", "by olga (page): try"),
        ("claimed", 4, "dan", ""),
        ("renewed", 4, "dan", "2 times, the latest here"),
        ("progress", 4, "dan", "3 of 5"),
        ("succeeded", 4, "dan", ""),
    ]
    assert [each.at for each in events] == sorted(each.at for each in events)
    tokens = [each.fencing_token or 0 for each in events if each.event == "claimed"]
    assert tokens == sorted(tokens) and len(set(tokens)) == len(tokens)
    (lost,) = (each for each in events if each.event == "lost")
    assert lost.fencing_token == tokens[0]


def test_page_api_and_command_tell_the_same(task: Task, auditor: Client) -> None:
    events = traced(task)
    out = StringIO()

    call_command("tasks", "trace", str(task.pk), "--json", stdout=out)
    answered = auditor.get(f"/api/tasks/{task.pk}/trace").json()
    page = auditor.get(f"/ops/tasks/{task.pk}/").content.decode()

    printed = json.loads(out.getvalue())
    for told in (printed["events"], answered["events"]):
        assert [(each["event"], each["attempt"], each["text"]) for each in told] == [
            (each.event, each.attempt, each.text) for each in events
        ]
    assert "by olga (page): try" in page and "a late result" in page
    out = StringIO()
    call_command("tasks", "trace", f"task:{task.pk}", stdout=out)
    assert len(out.getvalue().splitlines()) == len(events) + 2
    assert re.search(r"\+\d+\.\d{3} s +succeeded", out.getvalue())


def test_who_may_not_see_the_audit_sees_no_operator_and_nobody_sees_payload(
    task: Task, viewer: Client
) -> None:
    answered = viewer.get(f"/api/tasks/{task.pk}/trace")
    page = viewer.get(f"/ops/tasks/{task.pk}/")

    for response in (answered, page):
        assert response.status_code == 200
        text = response.content.decode()
        assert "a late result" in text
        assert "olga" not in text and "password" not in text and "secret" not in text


def test_a_client_without_permission_sees_no_trace(task: Task, client: Client) -> None:
    client.force_login(User.objects.create_user("eve"))

    assert client.get(f"/api/tasks/{task.pk}/trace").status_code == 403


@pytest.mark.parametrize("state", ["ready", "scheduled", "cancelled"])
def test_a_task_that_never_ran_has_a_trace(state: str) -> None:
    events = [each.event for each in traced(make_task(state=state))]

    assert events == (["enqueued", "ended"] if state == "cancelled" else ["enqueued"])


def test_the_end_of_a_task_that_failed_or_was_cancelled_is_the_last_event() -> None:
    failed, running = make_task(state="failed"), make_task(state="running", holder="ann")
    Task.objects.filter(pk=running.pk).cancel(by="olga")
    asked = [(each.event, each.text) for each in traced(running)]
    Task.objects.accept_cancel(running, "olga")

    assert [(each.event, each.text) for each in traced(failed)][-2:] == [
        ("failed", "ValueError: no luck"),
        ("ended", "failed for good"),
    ]
    assert asked == [
        ("enqueued", "in the queue default"),
        ("claimed", ""),
        ("cancel_requested", "by olga"),
    ]
    assert [(each.event, each.text) for each in traced(running)][-2:] == [
        ("cancelled", "cancelled by olga"),
        ("ended", "cancelled by olga"),
    ]


def test_the_newest_rows_are_traced_where_there_are_many() -> None:
    task = make_task()
    for number in range(4):
        mine = claim(task, f"w{number}")
        Task.objects.fail(mine, ValueError(str(number)))

    events = read_trace(Task.objects.get(pk=task.pk), with_actions=True, limit=2)

    assert [each.holder for each in events] == ["", "w2", "w2", "w3", "w3"]


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_task_that_was_pruned_has_no_trace(option: list[Any], auditor: Client) -> None:
    task = make_task(state="succeeded")
    Task.objects.all().prune(timedelta(0))

    with pytest.raises(CommandError, match=r"no task:\d+\. .* pruned") as refused:
        call_command("tasks", "trace", str(task.pk), *option)
    assert refused.value.returncode == 1
    assert auditor.get(f"/api/tasks/{task.pk}/trace").status_code == 404


def test_a_cancelled_child_names_its_parent() -> None:
    parent = make_task()
    child, alone = make_task(parent=parent), make_task(parent=parent)
    Task.objects.filter(pk=alone.pk).cancel(by="ann")
    Task.objects.filter(pk=parent.pk).cancel(by="ann")

    headlines = [diagnose(Task.objects.get(pk=each.pk)).headline for each in (parent, child, alone)]
    assert headlines == [
        "Cancelled by ann.",
        f"Cancelled by ann with its parent task:{parent.pk}.",
        "Cancelled by ann.",
    ]
