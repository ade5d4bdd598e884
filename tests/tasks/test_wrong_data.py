"""Data that a handler does not take is refused by each way to enqueue it, and never stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from tasks import handler
from tasks.exceptions import InvalidArguments
from tasks.models import Schedule, Task
from tests.api_calls import call
from tests.pages import Page

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_handlers", "compatible")]

WRONG = {"invoice": 7}
#: In each refusal.
REASON = "'invoice_id' is missing; 'invoice' is unknown (did you mean 'invoice_id'?)"


@pytest.fixture
def send() -> Any:
    @handler("invoices.send")
    def send(ctx: Any, invoice_id: int, *, copies: int = 1) -> None: ...

    return send


#: Each way to enqueue from Python, with data that the handler does not take.
WAYS: dict[str, Callable[[Any], object]] = {
    "enqueue": lambda send: send.enqueue(**WRONG),
    "using().enqueue": lambda send: send.using(priority=1).enqueue(**WRONG),
    "enqueue_many": lambda send: send.enqueue_many([{"invoice_id": 1}, WRONG]),
    "enqueue_on_commit": lambda send: send.enqueue_on_commit(**WRONG),
    "Task.objects.enqueue": lambda send: Task.objects.enqueue("invoices.send", WRONG),
    "Task.objects.enqueue a function": lambda send: Task.objects.enqueue(send, WRONG),
    "Task.objects.enqueue_many": lambda send: Task.objects.enqueue_many(send, [{}, WRONG]),
    "Task.objects.enqueue_on_commit": lambda send: Task.objects.enqueue_on_commit(send, WRONG),
}


@pytest.mark.parametrize("way", WAYS)
def test_python_code_gets_an_error_that_names_what_is_wrong(send: Any, way: str) -> None:
    with pytest.raises(InvalidArguments, match="is missing"):
        WAYS[way](send)

    assert not Task.objects.exists()


def test_the_error_names_the_parameter_that_was_meant(send: Any) -> None:
    with pytest.raises(InvalidArguments) as error:
        send.enqueue(**WRONG)

    assert REASON in str(error.value)


def test_a_schedule_of_such_data_is_not_valid(send: Any) -> None:
    schedule = Schedule(name="a", task_name="invoices.send", task_data=WRONG, cron="0 3 * * *")

    with pytest.raises(ValidationError, match="'invoice' is unknown"):
        schedule.full_clean()


def test_the_api_answers_400_for_one_task_and_for_one_of_many(client: Client, send: Any) -> None:
    wrong = {"name": "invoices.send", "data": WRONG}
    one = call(client, "POST", "/tasks", wrong)
    many = call(client, "POST", "/tasks/batch", {"tasks": [wrong]})

    assert (one.status, REASON in one.body["error"]) == (400, True)
    refused = [many.body] if many.status == 400 else many.body["results"]
    assert [REASON in each["error"] for each in refused] == [True]
    assert not Task.objects.exists()


def test_the_command_exits_with_an_error(send: Any) -> None:
    with pytest.raises(CommandError, match="'invoice' is unknown"):
        call_command("tasks", "enqueue", "invoices.send", "--data", json.dumps(WRONG))

    assert not Task.objects.exists()


def test_the_form_of_a_schedule_shows_the_error_at_the_data(client: Client, send: Any) -> None:
    client.force_login(User.objects.create_superuser("olga"))
    fields = {"name": "a", "task_name": "invoices.send", "task_data": json.dumps(WRONG)}
    fields |= {"cron": "0 3 * * *", "timezone": "UTC", "priority": "0"}
    fields |= {"missed": "latest", "overlap": "on"}

    page = Page(client.post(reverse("admin:leasing_tasks_schedule_add"), fields))

    assert (page.status, page.invalid) == (200, {"task_data"})
    assert not Schedule.objects.exists()
