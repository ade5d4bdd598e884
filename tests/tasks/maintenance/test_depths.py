"""The tasks that wait in each queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings

from leasing.functions import database_now
from tasks.maintenance.counting import depths
from tasks.maintenance.depths import count_depths
from tasks.models import Task
from tests.factories import claimed, make_task, make_worker
from tests.limits import Limits

pytestmark = pytest.mark.django_db


def give_back(queue: str) -> None:
    task = make_task(queue=queue)
    Task.objects.give_back(claimed(task, "ann"), "No handler", delay=timedelta(seconds=60))


def test_a_sample_counts_what_lacks_a_handler_as_ready_too() -> None:
    make_worker(handlers={"other": "thread"})
    give_back("default")
    make_task(state="scheduled")
    now = database_now("default") + timedelta(seconds=60)

    found = depths(["default", "mail"], now)["default"]

    assert (found["ready"], found["scheduled"]) == (1, 1)
    assert 60 <= found["oldest"] < 120


def test_a_sample_counts_no_more_of_them_than_it_has_looked_at(limits: Limits) -> None:
    make_worker(handlers={"other": "thread"})
    for _ in range(3):
        give_back("default")
    limits(count_cap=1)

    found = depths(["default"], database_now("default"))["default"]

    assert (found["ready"], found["scheduled"]) == (2, 0)


def test_a_queue_whose_first_task_comes_between_the_statements_is_left_out(
    settings: Settings,
) -> None:
    settings.TASK_QUEUE = {"QUEUES": ("default", "mail")}
    make_worker(queues=["default", "mail"], handlers={"other": "thread"})
    give_back("default")
    statements: list[str] = []

    def meanwhile(execute: Any, sql: str, *rest: Any) -> Any:
        answer = execute(sql, *rest)
        statements.append(sql)
        if len(statements) == 1:
            give_back("mail")
        return answer

    with connection.execute_wrapper(meanwhile):
        counted = count_depths()

    assert counted.keys() == {"default"}
    assert (counted["default"].ready, counted["default"].scheduled) == (1, 0)
