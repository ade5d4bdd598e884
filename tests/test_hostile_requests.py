"""Hostile requests: no page, list of the admin or route answers 500, and the API refuses each with
a 4xx in the one shape of errors, and leaves nothing behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

import leasing.urls
import tasks.urls
from leasing.admin.base import ReadOnlyAdmin
from leasing.api.keys import lease_key_of
from leasing.models import Lease
from project.urls import api
from tasks.models import Queue, Schedule, Task
from tests import hostile
from tests.factories import make_lease, make_task, make_worker
from tests.hostile import HOSTILE, PICKED, WRONG_KEYS, cursors
from tests.pages import admins

pytestmark = pytest.mark.django_db
#: Hundreds of requests a test: every page and list, on both databases.
many_pages = pytest.mark.slow

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
    "leasing:stores": ("store", "q"),
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
MODELS = list(admins())
EACH_MODEL = pytest.mark.parametrize("model", MODELS, ids=[model.__name__ for model in MODELS])


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
        case "detail" | "revoke" | "settle" | "export_events":
            given["lease_id"] = make_lease().pk
    return reverse(
        name, kwargs={each: given[each] for each in PAGES[name].pattern.regex.groupindex}
    )


@many_pages
@pytest.mark.parametrize("name", PAGES)
def test_no_question_to_a_page_is_a_fault(client: Client, name: str) -> None:
    url = page(name)
    for each in ASKED.get(name, ("at",)):
        values = (*HOSTILE, *CURSORS) if each == "at" else HOSTILE
        assert not faults(client, asked(url, each, values, "&scope=all"))
        if each == "at":
            assert not faults(client, asked(url, each, ENDED, "&state=failed"))


@many_pages
@pytest.mark.parametrize("name", WITH_ROWS)
def test_no_path_of_a_page_is_a_fault(client: Client, name: str) -> None:
    parts = PAGES[name].pattern.regex.groupindex
    kinds = ("", "task:", "order:") if "lease_id" in parts else ("",)
    for text in (kind + key for kind in kinds for key in WRONG_KEYS):
        number = int(text) if text.isdigit() else 1
        given = {"lease_id": text, "pk": number, "name": "reschedule", "form": "csv"}
        url = reverse(name, kwargs={each: given[each] for each in parts})
        assert not faults(client, [("get", url, None), ("post", url, {"reason": "x"})])


@many_pages
@pytest.mark.parametrize("name", SENT)
def test_no_form_of_a_page_is_a_fault(client: Client, name: str) -> None:
    url = page(name)
    bodies = [{"reason": "x", each: value} for each in SENT[name] for value in HOSTILE]
    assert not faults(client, (("post", url, body) for body in bodies))


def list_of(model: type[Model]) -> tuple[str, ReadOnlyAdmin]:
    site = admins()[model]
    assert isinstance(site, ReadOnlyAdmin)
    name = f"{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(f"admin:{name}"), site


@many_pages
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


@many_pages
@EACH_MODEL
def test_no_form_of_the_admin_is_a_fault(client: Client, model: type[Model]) -> None:
    url, site = list_of(model)
    for act in site.acts[:1]:
        said = {"action": act.name, "confirmed": "yes", "reason": "x", "typed": "x"}
        bodies = [said | {"_selected_action": "1", "selection": text} for text in PICKED]
        bodies += [{"action": act.name, "_selected_action": key} for key in WRONG_KEYS]
        bodies += [{"action": key, "_selected_action": "1"} for key in WRONG_KEYS]
        assert not faults(client, (("post", url, body) for body in bodies))


@many_pages
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


# The API


@pytest.fixture
def given() -> dict[str, Any]:
    """Rows that the requests are about, and the values by which they are named."""
    lease = Lease.objects.acquire("report:42", holder="web-1", ttl=86_400)
    Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 1})
    (task,) = Task.objects.claim("worker-9", ttl=86_400)
    Queue.objects.declare(["default", "reports"])
    Schedule.objects.create(
        name="nightly", task_name="sample.sleep", cron="0 3 * * *", task_data={}
    )
    return {
        "lease.lease_id": lease.lease_id,
        "lease.lease_key": lease_key_of(lease),
        "resource": lease.resource,
        "holder": lease.holder,
        "task.task_id": task.pk,
        "task.id": task.pk,
        "task.lease_key": lease_key_of(task),
        "processor": task.holder,
        "task.name": "sample.sleep",
        "queue.name": "default",
        "name": "nightly",
        "reason": "fuzzed",
    }


def everything() -> list[Any]:
    """Every row of both packages."""
    labels = ("leasing", "leasing_tasks")
    models = [model for label in labels for model in apps.get_app_config(label).get_models()]
    return [list(model._default_manager.order_by("pk").values()) for model in models]


def send(client: Client, request: hostile.Request) -> tuple[int, Any]:
    raw = request.body or b""
    response = client.generic(
        request.method,
        f"/api{request.path}",
        raw,
        content_type=request.content_type,
        headers=dict(request.headers),
    )
    try:
        return response.status_code, json.loads(response.content)
    except ValueError:
        return response.status_code, None


def is_refusal(status: int, told: Any, mode: str) -> bool:
    """Return True if the request, each of its items, or its address is refused."""
    if not isinstance(told, dict):
        return False
    if results := told.get("results"):
        return all(each["status"] >= 400 and each["error"] for each in results)
    if status == 200:  # to clients of the sample, a task that is not there is no error
        return mode == "compatible" and str(told.get("message", "")).startswith("There is no task ")
    return 400 <= status < 500 and list(told) == ["error"] and bool(told["error"])


NAMES = sorted(hostile.operations(api.get_openapi_schema(path_prefix=""), {}))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["closed", "compatible"])
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_request_to_the_api_is_refused_and_leaves_nothing(
    client: Client,
    settings: Settings,
    given: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    name: str,
    mode: str,
) -> None:
    caplog.set_level("CRITICAL", "django.request")
    caller = client if mode == "closed" else Client()  # a stranger
    settings.LEASING = {**settings.LEASING, "API_ACCESS": mode}
    operation = hostile.operations(api.get_openapi_schema(path_prefix=""), given)[name]
    before = everything()

    taken = [
        (request.evil[:60], *answer)
        for request in operation.evils(refuses_unknown=mode == "closed")
        if not is_refusal(*(answer := send(caller, request)), mode)
    ]

    assert taken == []
    assert everything() == before
    # It is the evil that is refused, and not what is around it.
    key = {"Idempotency-Key": str(uuid.uuid4())}
    good = hostile.Request("", operation.method, operation.path, operation.sent, headers=key)
    status, _ = send(caller, good)
    assert status not in (400, 413, 415) and status < 500


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_an_address_does_not_have_is_refused(
    client: Client, given: dict[str, Any], name: str
) -> None:
    known = hostile.operations(api.get_openapi_schema(path_prefix=""), given)
    path = known[name].path
    for method in hostile.METHODS:
        # /leases/renew is an address of /leases/{lease_id}, too.
        if method not in {each.method for each in known.values() if each.path == path}:
            status, told = send(client, hostile.Request(method, method, path, None))
            assert is_refusal(status, told, "closed"), (method, status)
