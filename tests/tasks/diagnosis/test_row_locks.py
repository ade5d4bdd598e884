"""Rows of tasks that another session's transaction has locked: PostgreSQL shows whose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test import Client

from leasing.db import row_locks
from tasks.diagnosis import diagnose
from tasks.models import Task, TaskAttempt
from tests.factories import make_task, make_worker
from tests.leasing.support import address
from tests.limits import Limits
from tests.pages import get, signed_in
from tests.tasks.support import row_of

pytestmark = pytest.mark.django_db(transaction=True)

OVERVIEW = "/ops/"


@pytest.fixture
def session(limits: Limits) -> Iterator[psycopg.Connection[Any]]:
    """Return a session of somebody at a console."""
    if connection.vendor != "postgresql":
        pytest.skip("others have no row locks")
    limits(short_lock=0)
    with psycopg.connect(**address() | {"application_name": "console"}) as session:
        yield session
        session.rollback()


def lock(session: psycopg.Connection[Any], *tasks: Task, how: str = "FOR UPDATE") -> None:
    keys = [task.pk for task in tasks]
    query = f"SELECT id FROM leasing_tasks_task WHERE id = ANY(%s) {how}"
    assert len(session.execute(query.encode(), [keys]).fetchall()) == len(tasks)


def late_task() -> Task:
    """A task whose worker is alive, and has missed a renewal."""
    make_worker(name="ann")
    task = make_task(state="running", holder="ann")
    silent_for(task, 0.6)
    return task


def silent_for(task: Task, share: float) -> None:
    back = task.ttl * share
    Task.objects.filter(pk=task.pk).update(
        acquired_at=F("acquired_at") - back, expires_at=F("expires_at") - back
    )
    task.refresh_from_db()


@pytest.mark.parametrize("share", [0, 0.7], ids=["late", "expired"])
def test_a_late_task_names_the_session_that_has_locked_its_row(
    session: psycopg.Connection[Any], share: float
) -> None:
    task = late_task()
    silent_for(task, share)
    lock(session, task)

    answer = diagnose(task)

    pid = session.info.backend_pid
    assert (answer.code, answer.severity) == ("row_locked", "critical")
    assert f"pid {pid}, user {session.info.user}, application console" in answer.headline
    began = re.search(r"which began (just now|\d+ s ago): neither renewal nor rec", answer.headline)
    assert began, answer.headline
    assert "Ask whoever runs console to commit or roll back." in answer.next
    role = f"as the role {session.info.user} or one with pg_signal_backend"
    assert f"in psql on the same database, {role}: " in answer.next
    assert answer.next.endswith(f"SELECT pg_terminate_backend({pid});")


@pytest.mark.parametrize(
    ("state", "how"),
    [("live", "FOR UPDATE"), ("ended", "FOR UPDATE"), ("late", "FOR KEY SHARE")],
    ids=["on time", "the transaction has ended", "a frozen worker that enqueues a child"],
)
def test_a_lock_that_is_in_nobodys_way_is_no_reason(
    session: psycopg.Connection[Any], state: str, how: str
) -> None:
    task = late_task() if state != "live" else make_task(state="running", holder="ann")
    if state == "late":
        make_worker(name="bea", state="late")
        Task.objects.filter(pk=task.pk).update(holder="bea")
        task.refresh_from_db()
    lock(session, task, how=how)
    if state == "ended":
        session.rollback()

    assert diagnose(task).code != "row_locked"


def test_what_a_role_may_not_see_is_left_out(session: psycopg.Connection[Any]) -> None:
    task = late_task()
    lock(session, task)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE pg_read_all_data")
        try:
            (found,) = row_locks.row_locks(Task.objects.filter(pk=task.pk)).values()
        finally:
            cursor.execute("RESET ROLE")

    assert (found.pid, found.since) == (session.info.backend_pid, None)
    assert f"(pid {found.pid}, user {session.info.user}" in str(found.parts)


def test_the_overview_names_the_session_first_and_leads_to_the_task(
    session: psycopg.Connection[Any],
) -> None:
    tasks = [late_task(), make_task(state="stuck", holder="ann")]
    make_task(state="failed")
    lock(session, *tasks)

    page = get(signed_in("leasing_tasks.view_task"), OVERVIEW)

    first, *others = page.all(".needs li")
    assert first["data-code"] == "row_locked" and first.one(".tinted").tone == "crit"
    assert [each["data-code"] for each in others] == ["failed"]
    pid = session.info.backend_pid
    assert (
        f"The rows of 2 tasks are locked by another session’s transaction (pid {pid}" in first.text
    )
    assert first.links[0] in [f"/ops/tasks/{task.pk}/" for task in tasks]


def test_the_attempt_says_that_the_row_was_locked_and_how_often_it_was_tried(
    session: psycopg.Connection[Any],
) -> None:
    locked, other = make_task(state="stuck", holder="ann"), make_task(state="stuck", holder="bob")
    lock(session, locked)
    assert [Task.objects.recover() for _ in range(3)] == [1, 0, 0]
    session.rollback()

    assert Task.objects.recover() == 1

    errors = dict(TaskAttempt.objects.values_list("task", "error"))
    assert errors == {
        locked.pk: "could not be renewed: the row was locked (2 tries)",
        other.pk: "bob did not renew its lease in time",
    }
    assert row_of(locked)["last_error"] == errors[locked.pk]


def test_a_database_without_row_locks_says_nothing() -> None:
    if connection.vendor == "postgresql":
        pytest.skip("it has them")

    assert row_locks.row_locks(Task.objects.filter(pk=late_task().pk)) == {}
    assert diagnose(Task.objects.get()).code == "late"


def test_a_page_is_shown_where_the_server_refuses_to_show_locks(
    session: psycopg.Connection[Any], admin_client: Client
) -> None:
    task = late_task()
    lock(session, task)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TEMP VIEW pg_locks AS"
                " SELECT * FROM pg_catalog.pg_locks WHERE 1 / (pid - pid) > 0"
            )
            cursor.execute("SET search_path = pg_temp, public, pg_catalog")
        assert row_locks.row_locks(Task.objects.filter(pk=task.pk)) == {}
        with transaction.atomic():
            row_locks.row_locks(Task.objects.filter(pk=task.pk))
            assert Task.objects.filter(pk=task.pk).exists()
        assert admin_client.get(OVERVIEW).status_code == 200
    finally:
        connection.close()
