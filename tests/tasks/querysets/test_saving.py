"""Once a task is stored its verbs alone write its state: saving what is remembered of it changes
neither who works on it nor what became of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import FieldError
from django.db import IntegrityError, transaction

from leasing.querysets import LEASE_FIELDS
from tasks.models import Task, TaskStatus
from tests.factories import claimed, make_task
from tests.tasks.support import row_of

pytestmark = pytest.mark.django_db

#: What save() writes: what the producer said, and no verb of a worker or an operator writes.
SAVED = {"name", "task_data", "priority", "timeout", "progress_timeout"}


def succeed(task: Task) -> None:
    Task.objects.complete(claimed(task, "ann"), "done")


def fail_for_good(task: Task) -> None:
    Task.objects.filter(pk=task.pk).update(max_attempts=1)
    Task.objects.fail(claimed(task, "ann"), "no luck")


def fail_once(task: Task) -> None:
    Task.objects.fail(claimed(task, "ann"), "no luck")


def begin(task: Task) -> None:
    mine = claimed(task, "ann")
    Task.objects.checkpoint(mine, {"page": 3}, progress="half")


def cancel(task: Task) -> None:
    Task.objects.filter(pk=task.pk).cancel(by="olga")


def cancel_and_retry(task: Task) -> None:
    fail_for_good(task)
    Task.objects.filter(pk=task.pk).retry()


def move(task: Task) -> None:
    Task.objects.filter(pk=task.pk).update(queue="mail")


MEANWHILE = pytest.mark.parametrize(
    "happens", [succeed, fail_for_good, fail_once, begin, cancel, cancel_and_retry, move]
)


@MEANWHILE
@pytest.mark.parametrize(
    "save",
    [
        pytest.param(lambda task: task.save(), id="save"),
        pytest.param(lambda task: task.save(update_fields=["status", "attempts"]), id="named"),
        pytest.param(lambda task: task.save(force_update=True), id="forced"),
        pytest.param(lambda task: task.save_base(), id="save_base"),
        pytest.param(
            lambda task: Task.objects.update_or_create(
                pk=task.pk, defaults={"priority": 0, "status": "ready"}
            ),
            id="update_or_create",
        ),
    ],
)
def test_saving_a_stale_task_changes_nothing_that_a_verb_wrote(
    happens: Callable[[Task], None], save: Callable[[Task], Any]
) -> None:
    stale = make_task(unique_key="k", concurrency_key="c")
    happens(stale)
    before = row_of(stale)

    save(stale)

    assert row_of(stale) == before


def test_a_status_that_was_assigned_is_not_saved() -> None:
    task = make_task()
    before = row_of(task)

    task.status = "succeeded"
    task.save()

    assert row_of(task) == before


def test_what_the_producer_said_is_saved() -> None:
    task = make_task()
    begin(task)

    task.priority, task.task_data = 7, {"sleep_duration_seconds": 2}
    task.save()

    row = row_of(task)
    assert (row["priority"], row["task_data"]) == (7, {"sleep_duration_seconds": 2})


def test_every_other_column_is_kept_from_saving() -> None:
    kept = Task.verb_columns | Task.state_columns

    assert kept > LEASE_FIELDS
    assert {field.name for field in Task._meta.concrete_fields} - kept == {"id"} | SAVED


def test_columns_named_for_saving_are_saved() -> None:
    stale = make_task()
    succeed(stale)

    stale.priority = 7
    stale.save(update_fields=["priority"])

    assert (row_of(stale)["priority"], row_of(stale)["status"]) == (7, TaskStatus.SUCCEEDED)


@pytest.mark.parametrize("column", ["status", "attempts", "holder", "unique_key", "scheduled_at"])
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(
            lambda task, column: Task.objects.bulk_update([task], ["priority", column]),
            id="bulk_update",
        ),
        pytest.param(
            lambda task, column: Task.objects.bulk_create(
                [task],
                update_conflicts=True,
                unique_fields=["id"],
                update_fields=["priority", column],
            ),
            id="bulk_create",
        ),
    ],
)
def test_naming_a_column_of_the_verbs_in_bulk_is_refused(
    write: Callable[[Task, str], Any], column: str
) -> None:
    stale = make_task()
    succeed(stale)
    before = row_of(stale)

    with pytest.raises(FieldError, match=f"Only lease methods write {column} of a stored task"):
        write(stale, column)

    assert row_of(stale) == before


def test_a_task_is_created_with_whatever_is_said_then() -> None:
    new = Task.objects.update_or_create(
        name="x", defaults={"priority": 3}, create_defaults={"attempts": 2}
    )[0]

    assert row_of(new)["attempts"] == 2


def test_columns_of_the_producer_are_written_in_bulk() -> None:
    stale = make_task()
    succeed(stale)
    before = row_of(stale)
    stale.priority = 7

    Task.objects.bulk_update([stale], ["priority"])
    assert row_of(stale) == before | {"priority": 7}

    stale.priority = 8
    options: Any = {"unique_fields": ["id"], "update_fields": ["priority"]}
    Task.objects.bulk_create([stale], update_conflicts=True, **options)
    assert row_of(stale) == before | {"priority": 8}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("state", ["succeeded", "running", "retrying"])
def test_a_fixture_is_written_as_it_is(state: str, is_there: bool) -> None:
    task = make_task(state=state)
    before = row_of(task)
    fixture = serializers.serialize("json", Task.objects.all())
    if is_there:
        Task.objects.filter(pk=task.pk).revoke()
        Task.objects.filter(pk=task.pk).update(priority=9, last_error="another")
    else:
        Task.objects.all().delete()

    for each in serializers.deserialize("json", fixture):
        each.save()

    def rounded(row: dict[str, Any]) -> dict[str, Any]:
        """JSON has milliseconds; a whole second is written without any."""
        moments = {name: value for name, value in row.items() if isinstance(value, datetime)}
        return row | {name: at.isoformat(timespec="milliseconds") for name, at in moments.items()}

    assert rounded(row_of(task)) == rounded(before)


# What is gone


def test_a_task_that_is_gone_is_not_saved_back() -> None:
    stale = make_task()
    succeed(stale)
    Task.objects.discard()

    with pytest.raises(Task.DoesNotExist, match="no longer exists"), transaction.atomic():
        stale.save()

    assert not Task.objects.exists()


def test_a_task_of_another_database_is_inserted_in_this_one() -> None:
    task = make_task(state="running")
    Task.objects.all().delete()
    task._state.db = "elsewhere"

    task.save(using="default")

    assert (row_of(task)["status"], row_of(task)["holder"]) == ("ready", "")


# Copies


def test_a_copy_needs_no_more_than_another_key() -> None:
    task = make_task(state="running")

    task.pk = None
    task.save()

    assert sorted(Task.objects.values_list("status", flat=True)) == ["ready", "running"]


def copied(task: Task) -> Task:
    """``task`` as Django's documentation copies a row."""
    twin = copy.copy(task)
    twin.pk = None
    twin._state.adding = True
    return twin


def save(task: Task) -> None:
    task.save()


def save_in_bulk(task: Task) -> None:
    Task.objects.bulk_create([task])


@pytest.mark.parametrize("store", [save, save_in_bulk])
def test_a_copy_of_a_running_task_is_ready(store: Callable[[Task], None]) -> None:
    task = make_task(state="running", max_attempts=1, concurrency_key="c", priority=4)
    Task.objects.checkpoint(task, {"page": 3}, progress="half")
    rows = Task.objects.filter(pk=task.pk)
    rows.cancel(by="olga")
    before = row_of(task)

    twin = copied(rows.get())
    store(twin)

    blank = Task(name=task.name)
    fresh = {name: getattr(blank, name) for name in ("status", *Task.verb_columns, "attempts")}
    kept = {name: before[name] for name in ("queue", "max_attempts", "concurrency_key", *SAVED)}
    assert row_of(twin).items() >= (fresh | kept).items()
    assert row_of(twin)["slot"] is None
    assert row_of(twin)["checkpoint"] is None
    assert row_of(twin)["scheduled_at"] == before["scheduled_at"]
    assert row_of(task) == before
    assert (twin.status, twin.grant_id) == ("ready", None)


@pytest.mark.parametrize(("state", "status"), [("succeeded", "succeeded"), ("retrying", "ready")])
def test_a_copy_of_any_other_task_is_in_its_state_without_its_lease(
    state: str, status: str
) -> None:
    task = make_task(state=state)

    twin = copied(task)
    twin.save()

    row = row_of(twin)
    assert (row["status"], row["attempts"], row["grants"], row["holder"]) == (status, 1, 0, "")


def test_a_copy_has_no_key_that_is_another_task_s() -> None:
    task = make_task(state="running", unique_key="k")

    with pytest.raises(IntegrityError), transaction.atomic():
        copied(task).save()
