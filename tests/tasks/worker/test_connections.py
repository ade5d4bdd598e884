"""Connections of the threads that run tasks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tasks.models import Task, TaskStatus
from tasks.runtime import connection as keeping
from tests.limits import Limits
from tests.processes import wait_for
from tests.tasks.support import Handlers
from tests.tasks.workers import patient, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]

Asked = list[tuple[BaseDatabaseWrapper, Any]]


@pytest.fixture
def asked(handlers: Handlers) -> Asked:
    """The connections, each with what it is to the driver, over which tasks have asked."""
    asked: Asked = []

    def ask(ctx: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        asked.append((connections["default"], connection.connection))

    handlers["ask"] = ask
    return asked


def run(number: int, meanwhile: Callable[[], object] = lambda: None, **seconds: float) -> None:
    Task.objects.enqueue_many("ask", [{}] * number)
    with working(threads=1, timing=patient(**seconds)):
        wait_for(lambda: Task.objects.filter(status=TaskStatus.SUCCEEDED).count() == number)
        meanwhile()


def test_a_thread_keeps_its_connection_from_task_to_task(asked: Asked) -> None:
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    run(20)

    assert len({id(raw) for _, raw in asked}) == 1


def test_a_thread_without_tasks_keeps_none(asked: Asked) -> None:
    run(3, lambda: wait_for(lambda: asked[-1][0].connection is None), slot_idle=0.01)


def test_a_connection_is_not_kept_for_long(asked: Asked, limits: Limits) -> None:
    limits(kept=0.0)
    run(5)

    assert len({id(raw) for _, raw in asked}) == 5


@pytest.mark.parametrize(
    "made_by",
    [
        pytest.param({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}}, id="of a pool"),
        pytest.param({"CONN_MAX_AGE": 30, "OPTIONS": {}}, id="with an age of its own"),
    ],
)
def test_other_connections_are_closed_when_django_would(
    made_by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping._thread, "keeps", True)
    made = SimpleNamespace(settings_dict=made_by, close_at=5.0)

    connection_created.send(sender=BaseDatabaseWrapper, connection=made)

    assert made.close_at == 5.0
