"""Tasks in a database of their own, apart from the project's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client, override_settings
from django.urls import reverse

from leasing.exceptions import LeaseLost
from tasks import handler
from tasks.models import (
    GeneratorDesiredState,
    Queue,
    Sample,
    Schedule,
    Task,
    TaskAttempt,
    TaskStatus,
    TaskStep,
    Worker,
)
from tasks.sample import SLEEP
from tests.leasing.support import expire
from tests.processes import wait_for
from tests.tasks.support import Handlers
from tests.tasks.workers import working

pytestmark = [
    pytest.mark.django_db(databases=["default", "shard"]),
    pytest.mark.usefixtures("in_a_database_of_their_own"),
]


@pytest.fixture
def in_a_database_of_their_own(shard: str) -> Iterator[None]:
    with override_settings(
        LEASING={"DATABASE": shard}, DATABASE_ROUTERS=["leasing.routers.LeasingRouter"]
    ):
        yield


def test_what_is_enqueued_is_found_where_it_was_stored() -> None:
    task = Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": 0})

    assert list(Task.objects.ready()) == [task]
    assert Task.objects.get()._state.db == "shard"
    (running,) = Task.objects.claim("ann")
    expire(running)
    assert list(Task.objects.stuck()) == [task]
    assert Task.objects.using("default").count() == 0


@pytest.mark.usefixtures("own_handlers")
def test_a_task_is_stored_when_a_transaction_elsewhere_has_committed(
    django_capture_on_commit_callbacks: Any,
) -> None:
    @handler("sort")
    def sort(ctx: Any, by: str) -> None: ...

    with django_capture_on_commit_callbacks(using="default", execute=True):
        sort.using(transaction="default").enqueue_on_commit(by="name")
        assert not Task.objects.exists()

    assert Task.objects.get().data == {"by": "name"}


@pytest.mark.usefixtures("own_handlers")
def test_a_task_is_stored_when_a_transaction_of_its_own_database_has_committed(
    django_capture_on_commit_callbacks: Any,
) -> None:
    @handler("sort")
    def sort(ctx: Any) -> None: ...

    with django_capture_on_commit_callbacks(using="shard", execute=True):
        sort.enqueue_on_commit()
        assert not Task.objects.exists()

    assert Task.objects.get().name == "sort"


def test_what_belongs_to_a_task_is_beside_it() -> None:
    Task.objects.enqueue_many(SLEEP, [{"sleep_duration_seconds": 0}] * 2)
    done, failed = Task.objects.claim("ann", limit=2)

    Task.objects.finish_step(done, "first")
    Task.objects.complete(done, 1)
    Task.objects.fail(failed, "no paper")

    assert list(done.step_set.all()) == list(TaskStep.objects.all()) != []
    assert [each.task.status for each in TaskAttempt.objects.all()] == [TaskStatus.READY]
    with pytest.raises(LeaseLost, match="already ended"):
        Task.objects.complete(done, 2)
    assert Task.objects.get(pk=done.pk).task_output == 1


def test_a_task_ends_in_the_database_that_it_was_claimed_in() -> None:
    rows = Task.objects.using("default")
    for _ in range(2):
        rows.enqueue(SLEEP, {"sleep_duration_seconds": 0})
    one, other = rows.claim("ann", limit=2)

    Task.objects.heartbeat(one)
    assert Task.objects.complete(one).status == TaskStatus.SUCCEEDED
    with pytest.raises(LeaseLost):
        Task.objects.using("shard").complete(other)
    ended, ((refused, error),) = Task.objects.complete_many([(other, None)])
    assert (ended, refused, type(error)) == ([], other, LeaseLost)
    assert [rows.get(pk=each.pk).status for each in (one, other)] == ["succeeded", "running"]


@pytest.mark.django_db(transaction=True, databases=["default", "shard"])
def test_a_worker_works_in_the_database_of_the_tasks(handlers: Handlers) -> None:
    handlers["noted"] = lambda ctx: User.objects.create(username="done").pk
    Schedule.objects.create(name="hourly", task_name="noted", cron="0 * * * *")
    task = Task.objects.enqueue("noted")

    with working():
        wait_for(lambda: Task.objects.succeeded().filter(pk=task.pk).exists())
        wait_for(lambda: Schedule.objects.get(name="hourly").next_at)
        wait_for(Worker.objects.present().exists)
        assert Worker.objects.present().get().queues == ["default"]
        assert [queue.name for queue in Queue.objects.all()] == ["default"]
    assert User.objects.get().username == "done"
    for model in (Task, Worker, Queue, Sample):
        assert not model.objects.using("default").exists()


@pytest.mark.parametrize(
    "page",
    [
        *("leasing_tasks:overview", "leasing_tasks:list", "leasing_tasks:stuck"),
        *("leasing_tasks:schedules", "leasing_tasks:queues", "leasing_tasks:workers"),
        "leasing_tasks:handlers",
        *("leasing_tasks:generator", "leasing:list", "leasing:audit", "leasing:metrics"),
        *("admin:leasing_tasks_task_changelist", "admin:leasing_tasks_schedule_add"),
        *("admin:leasing_lease_changelist", "admin:leasing_leaseevent_changelist"),
    ],
)
def test_pages_show_the_database_of_the_tasks(page: str, admin_client: Client) -> None:
    GeneratorDesiredState.objects.create()
    Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": 0})

    with connections["default"].execute_wrapper(_of_the_project):
        assert admin_client.get(reverse(page)).status_code == 200


def _of_the_project(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    assert "leasing_" not in sql, sql
    return execute(sql, params, many, context)
