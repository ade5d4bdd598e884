"""Hostile addresses and forms: no page, list of the admin or route answers 500."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.urls import reverse

import leasing.urls
import tasks.urls
from leasing.admin.base import ReadOnlyAdmin
from leasing.web.cursors import Cursor
from tasks.models import Schedule
from tests.api_calls import BODIES
from tests.factories import make_lease, make_task, make_worker

# Hundreds of requests a test: every page, list and route, on both databases.
pytestmark = [pytest.mark.django_db, pytest.mark.slow]

#: What PostgreSQL stores in no text, what has more than 63 bits, and text that is JSON.
WRONG_KEYS = ("a\0b", "9" * 19, '{"a":1}')
#: A moment whose offset PostgreSQL does not know, and one that is beyond the calendar elsewhere.
HOSTILE = (*WRONG_KEYS, "2020-01-01T00:00:00+23:59", "9999-12-31T23:59:59-14:00")

TASKS = ("state", "q", "name", "queue", "holder", "since", "until", "at")
LEASES, AUDIT = ("state", "q", "renewed", "at"), ("by", "verb", "model", "key", "at")
#: What a page is asked, by its name; the others know their place in a list alone.
ASKED: dict[str, tuple[str, ...]] = {
    "leasing_tasks:overview": ("span",),
    "leasing_tasks:list": TASKS,
    "leasing_tasks:export": TASKS,
    "leasing_tasks:bulk": (*TASKS, "task"),
    "leasing_tasks:workers": ("state", "at"),
    "leasing:list": LEASES,
    "leasing:export": LEASES,
    "leasing:audit": AUDIT,
    "leasing:export_audit": AUDIT,
}
#: What is sent to a page.
SENT: dict[str, tuple[str, ...]] = {
    "leasing:revoke": ("reason", "typed", "next"),
    "leasing_tasks:act": ("reason", "queue", "scheduled_at", "seen"),
    "leasing_tasks:bulk": ("reason", "queue", "scheduled_at", "picked", "asked", "scope"),
    "leasing_tasks:queue_pause": ("reason", "queue"),
    "leasing_tasks:queue_resume": ("queue",),
    "leasing_tasks:generator_start": ("reason",),
    "leasing_tasks:generator_stop": ("reason",),
}
PAGES = {
    f"{urls.app_name}:{pattern.name}": pattern
    for urls in (leasing.urls, tasks.urls)
    for pattern in urls.urlpatterns
}
WITH_ROWS = [name for name, pattern in PAGES.items() if pattern.pattern.regex.groupindex]
MODELS = [
    model for model in admin.site._registry if model._meta.app_label in ("leasing", "leasing_tasks")
]
EACH_MODEL = pytest.mark.parametrize("model", MODELS, ids=[model.__name__ for model in MODELS])
#: What a hidden field of the admin may come back as.
PICKED = (
    *('{"a": 1}', "[[1]]", "[1]", "null", "1", '[["\\u0000", 1]]', '[["1", 1e400]]', "[" * 9_000),
    *(f'[["{"9" * 19}", {"9" * 30}]]', '[["1", {"a": 1}]]', '[[{"a": 1}, 1]]', "9" * 5_000, ""),
)


@pytest.fixture
def client(admin_client: Client) -> Client:
    """A user who may do everything."""
    admin_client.raise_request_exception = False
    return admin_client


def faults(client: Client, requests: Iterable[tuple[str, str, Any]]) -> list[str]:
    """Return the ``requests`` (method, address, body) that are answered 500. Their effects are
    undone."""
    failed = []
    for method, url, body in requests:
        as_json = {"content_type": "application/json"} if url.startswith("/api") else {}
        before: Any = connection.savepoint()  # no block: leases are taken in none
        response: Any = getattr(client, method)(url, body, **as_json)
        if response.status_code < 500 and response.streaming:
            b"".join(response.streaming_content)
        connection.needs_rollback = False
        connection.savepoint_rollback(before)
        if response.status_code >= 500:
            failed.append(f"{method} {url} {str(body)[:300]}: {response.exc_info}")
    return failed


def asked(url: str, name: str, values: Iterable[str], more: str = "") -> Iterator[Any]:
    return (("get", f"{url}?{name}={quote(value, safe='')}{more}", None) for value in values)


def cursors(label: str, column: str = "") -> Iterator[str]:
    moment = "2020-01-01T00:00:00Z" if column else ""
    for key in WRONG_KEYS:
        yield Cursor(label, "older", key, column, moment).encode()
    for hostile in HOSTILE if column else ():
        yield Cursor(label, "newer", "1", column, hostile).encode()


#: Places in lists that are sorted by key, and by a moment.
CURSORS = (
    *(*cursors("leasing.lease"), *cursors("leasing.auditentry"), *cursors("leasing_tasks.worker")),
    *(*cursors("leasing_tasks.task"), *cursors("leasing_tasks.taskattempt")),
    *cursors("leasing_tasks.schedule"),
)
ENDED = tuple(cursors("leasing_tasks.task", "processed_at"))


def page(name: str) -> str:
    """The address of a page, of a row that is there."""
    given: dict[str, Any] = {"name": "reschedule", "form": "csv", "pk": 1}
    match name.split(":")[1]:
        case "runbook_page":
            given["name"] = "worker-gone"
        case "worker":
            given["pk"] = make_worker().pk
        case "detail" | "act" if name.startswith("leasing_tasks"):
            given["pk"] = make_task().pk
        case "detail" | "revoke" | "export_events":
            given["lease_id"] = make_lease().pk
    return reverse(
        name, kwargs={each: given[each] for each in PAGES[name].pattern.regex.groupindex}
    )


@pytest.mark.parametrize("name", PAGES)
def test_no_question_to_a_page_is_a_fault(client: Client, name: str) -> None:
    url = page(name)
    for each in ASKED.get(name, ("at",)):
        values = (*HOSTILE, *CURSORS) if each == "at" else HOSTILE
        assert not faults(client, asked(url, each, values, "&scope=all"))
        if each == "at":
            assert not faults(client, asked(url, each, ENDED, "&state=failed"))


@pytest.mark.parametrize("name", WITH_ROWS)
def test_no_path_of_a_page_is_a_fault(client: Client, name: str) -> None:
    parts = PAGES[name].pattern.regex.groupindex
    kinds = ("", "task:", "order:") if "lease_id" in parts else ("",)
    for text in (kind + key for kind in kinds for key in WRONG_KEYS):
        number = int(text) if text.isdigit() else 1
        given = {"lease_id": text, "pk": number, "name": "reschedule", "form": "csv"}
        url = reverse(name, kwargs={each: given[each] for each in parts})
        assert not faults(client, [("get", url, None), ("post", url, {"reason": "x"})])


@pytest.mark.parametrize("name", SENT)
def test_no_form_of_a_page_is_a_fault(client: Client, name: str) -> None:
    url = page(name)
    bodies = [{"reason": "x", each: value} for each in SENT[name] for value in HOSTILE]
    assert not faults(client, (("post", url, body) for body in bodies))


def list_of(model: type[Model]) -> tuple[str, ReadOnlyAdmin]:
    site = admin.site._registry[model]
    assert isinstance(site, ReadOnlyAdmin)
    name = f"{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(f"admin:{name}"), site


@EACH_MODEL
def test_no_question_to_the_admin_is_a_fault(client: Client, model: type[Model]) -> None:
    url, site = list_of(model)
    names = {"q", "p", "o", *site.linked_filters}
    names |= {served.partition("=")[0] for served in site.indexed_filters}
    names |= {getattr(each, "parameter_name", f"{each}__exact") for each in site.list_filter}
    for name in sorted(names):
        assert not faults(client, asked(url, name, HOSTILE))
    for key in WRONG_KEYS:
        row = f"{url}{quote(key, safe='')}"
        rows = (f"{row}/{each}/" for each in ("change", "history", "delete"))
        assert not faults(client, (("get", each, None) for each in rows))


@EACH_MODEL
def test_no_form_of_the_admin_is_a_fault(client: Client, model: type[Model]) -> None:
    url, site = list_of(model)
    for act in site.acts[:1]:
        said = {"action": act.name, "confirmed": "yes", "reason": "x", "typed": "x"}
        bodies = [said | {"_selected_action": "1", "picked": picked} for picked in PICKED]
        bodies += [{"action": act.name, "_selected_action": key} for key in WRONG_KEYS]
        bodies += [{"action": key, "_selected_action": "1"} for key in WRONG_KEYS]
        assert not faults(client, (("post", url, body) for body in bodies))


def test_no_schedule_that_is_typed_is_a_fault(client: Client) -> None:
    url = reverse("admin:leasing_tasks_schedule_add")
    body = {"name": "x", "task_name": "sample.sleep", "task_data": "{}", "cron": "* * * * *"}
    body |= {"priority": "0", "timezone": "UTC", "missed": "skip", "overlap": "skip"}
    names = (*body, "every", "queue")
    bodies = [{**body, name: value} for name in names for value in HOSTILE]
    bodies += [{**body, "task_data": value} for value in PICKED]
    assert not faults(client, (("post", url, each) for each in bodies))
    for name in names:  # with which the form may begin
        assert not faults(client, asked(url, name, HOSTILE))


@pytest.mark.parametrize("data", ["", "null"])
def test_a_schedule_without_data_has_none(client: Client, data: str) -> None:
    body = {"name": "x", "task_name": "jobs.echo", "task_data": data, "cron": "* * * * *"}
    body |= {"priority": "0", "timezone": "UTC", "missed": "all", "overlap": "skip"}
    url = reverse("admin:leasing_tasks_schedule_add")
    assert client.post(url, body).status_code == 302
    assert Schedule.objects.get().task_data == {}


@pytest.mark.parametrize(
    "path", ["/leases", "/leases/expired", "/tasks", "/tasks/processed", "/generator/status"]
)
def test_no_question_to_the_api_is_a_fault(client: Client, path: str) -> None:
    assert not faults(client, asked(f"/api{path}", "limit", HOSTILE))


@pytest.mark.parametrize("path", ["leases/", "leases/task:", "leases/order:", "tasks/", ""])
def test_no_path_of_the_api_is_a_fault(client: Client, path: str) -> None:
    urls = [f"/api/{path}{quote(key, safe='')}" for key in WRONG_KEYS]
    assert not faults(client, (("get", url, None) for url in urls))


MORE = {"/tasks": ("data", "queue", "scheduled_at", "unique_key", "priority", "max_attempts")}


@pytest.mark.parametrize(
    ("method", "path", "body"), BODIES, ids=[f"{method} {path}" for method, path, _ in BODIES]
)
def test_no_body_of_the_api_is_a_fault(
    client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    names = (*body, *MORE.get(path, ("ttl", "task_output")))
    bodies = [{**body, name: value} for name in names for value in (*HOSTILE, 10**19, -(10**30))]
    sent = ((method.lower(), f"/api{path}", json.dumps(each)) for each in bodies)
    assert not faults(client, sent)
