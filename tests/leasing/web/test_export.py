"""Lists as files: all that the filter lets by, as it is read, and nothing that does harm."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.test import AsyncRequestFactory, RequestFactory
from django.test.utils import CaptureQueriesContext

from leasing import audit
from leasing.dashboard import exports
from leasing.models import AuditEntry, Lease, LeaseEvent
from leasing.web.export import Column, export, in_chunks, neutral, plain, secret
from tasks.dashboard import exports as task_exports
from tasks.models import Task
from tests.factories import make_lease, make_leases, make_task

pytestmark = pytest.mark.django_db


def request_of(user: Any = None) -> Any:
    request = RequestFactory().get("/")
    request.user = user or AnonymousUser()
    return request


def content(rows: Any, columns: list[Column], form: str, user: Any = None) -> str:
    response: Any = export(request_of(user), rows, columns, form, "list")
    return b"".join(response.streaming_content).decode()


def table(rows: Any, columns: list[Column], user: Any = None) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content(rows, columns, "csv", user), newline="")))


@pytest.mark.parametrize(
    "text",
    [
        *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '=cmd|"/c"!A1', "\n=1", "\r\n=1"),
        *(
            "\uff1d1+1",
            "\uff0b1",
            "\uff0d1",
            "\uff20SUM(A1)",
            "\ufe661",
            "\ufe621",
            "\ufe631",
            "\ufe6bA1",
        ),
    ],
)
def test_no_cell_is_taken_for_a_formula(text: str) -> None:
    assert neutral(text) == f"'{text}"
    task = make_task()
    Task.objects.filter(pk=task.pk).update(last_error=text)

    (_, row) = table(Task.objects.all(), plain("last_error"))
    assert row == [f"'{text}"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [("a=b", "a=b"), (-5, "-5"), (None, ""), (True, "True"), ([1], "[1]"), ("", "")],
)
def test_everything_else_stands_as_it_is(value: Any, cell: str) -> None:
    assert neutral(value) == cell


def test_an_export_is_read_by_key_in_chunks_and_none_comes_twice() -> None:
    made: list[Any] = make_leases(7)
    chunks = in_chunks(Lease.objects.all(), size=3)
    first = next(chunks)
    make_lease()  # comes meanwhile
    Lease.objects.filter(pk=made[0].pk).delete()

    keys = [row.pk for chunk in [first, *chunks] for row in chunk]

    assert keys == [lease.pk for lease in made[:0:-1]]


def test_chunks_that_are_full_to_the_last_end_too() -> None:
    make_leases(4)

    with CaptureQueriesContext(connection) as queries:
        sizes = [len(chunk) for chunk in in_chunks(Lease.objects.all(), size=2)]

    assert sizes == [2, 2]
    assert len(queries) == 3 and not any("OFFSET" in query["sql"] for query in queries)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_json_is_an_array_of_all_rows(count: int) -> None:
    make_leases(count)

    reported = json.loads(content(Lease.objects.with_state(), exports.LEASES, "json"))

    assert len(reported) == count
    assert all(row["state"] == "active" and row["ttl_seconds"] == 30.0 for row in reported)


def test_payload_is_for_those_who_may_see_it_and_its_secrets_for_nobody(admin_user: User) -> None:
    task = make_task()
    Task.objects.filter(pk=task.pk).update(task_data={"password": "hunter2", "city": "Hamburg"})

    for form in ("csv", "json"):
        hidden = content(Task.objects.all(), task_exports.TASKS, form)
        shown = content(Task.objects.all(), task_exports.TASKS, form, admin_user)
        assert "task_data" not in hidden and "Hamburg" not in hidden
        assert "Hamburg" in shown and "hunter2" not in shown


def test_payload_that_is_not_exported_is_not_read() -> None:
    make_task()
    rows = task_exports.readable(Task.objects.all(), AnonymousUser())

    with CaptureQueriesContext(connection) as queries:
        content(rows, task_exports.TASKS, "csv")

    assert len(queries) == 1
    assert "task_data" not in queries[0]["sql"] and 'checkpoint"' not in queries[0]["sql"]


def test_every_list_can_be_exported(admin_user: User) -> None:
    make_lease()
    make_task()
    audit.record("olga", "retry", Task, changed=1, keys=[1])
    lists: list[tuple[Any, list[Column]]] = [
        (Lease.objects.with_state(), exports.LEASES),
        (LeaseEvent.objects.all(), exports.EVENTS),
        (AuditEntry.objects.all(), exports.AUDIT),
        (Task.objects.all(), task_exports.TASKS),
    ]
    for rows, columns in lists:
        head, row = table(rows, columns, admin_user)
        assert head == [column.name for column in columns] and len(row) == len(head)
        (reported,) = json.loads(content(rows, columns, "json", admin_user))
        assert list(reported) == head


def test_a_list_in_another_order_is_exported_chunk_by_chunk() -> None:
    names = plain("resource")
    rows = [[make_lease(resource="b")], [make_lease(resource="a")]]

    assert table(rows, names) == [["resource"], ["b"], ["a"]]


def test_the_file_is_downloaded_and_kept_by_nobody() -> None:
    response = export(request_of(), Lease.objects.all(), plain("id"), "csv", "leases")

    assert response["Content-Disposition"] == 'attachment; filename="leases.csv"'
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Cache-Control"] == "no-store"


def test_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="xls"):
        export(request_of(), Lease.objects.all(), plain("id"), "xls", "leases")


def test_it_streams_under_asgi_too() -> None:
    request: Any = AsyncRequestFactory().get("/")
    request.user = AnonymousUser()
    rows = [[Lease(pk=1)], [Lease(pk=2)]]

    async def read() -> str:
        response: Any = export(request, rows, plain("id"), "csv", "leases")
        assert response.is_async
        return b"".join([part async for part in response]).decode()

    assert asyncio.run(read()).split() == ["id", "1", "2"]


def test_what_stands_in_a_secret_column_is_masked_whoever_reads_it(admin_user: User) -> None:
    task = Task(task_data={"token": "hunter2"})

    assert "hunter2" not in content(
        [[task]], secret("leasing_tasks.view_payload", "task_data"), "json", admin_user
    )
