"""Who may call which verb of the API: every verb, with every kind of client.

The verbs come from the OpenAPI document and from the URL configuration. One that is not in VERBS
fails, and so does one that asks for another permission than is written there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from leasing.api.keys import lease_key_of
from leasing.functions import after
from leasing.models import ApiToken, Leasable, Lease
from leasing.models.api_token import known_scopes
from project.urls import api
from tasks.models import Schedule, Task
from tests.api_calls import Answer, call
from tests.factories import make_task
from tests.fixtures import compatible

__all__ = ["compatible"]

pytestmark = pytest.mark.django_db

#: The verbs that each permission allows.
VERBS: dict[str, tuple[str, ...]] = {
    "leasing.view_lease": (
        *("list_leases", "list_active_leases", "list_expired_leases", "list_renewed_leases"),
        *("list_released_leases", "get_lease", "get_named_lease", "list_lease_events"),
    ),
    "leasing.change_lease": (
        *("acquire_lease", "renew_lease", "renew_leases", "release_lease", "release_lease_by_id"),
    ),
    "leasing.revoke_lease": ("revoke_lease", "revoke_task"),
    "leasing_tasks.view_task": (
        *("list_tasks", "list_started_tasks", "list_processed_tasks", "list_stuck_tasks"),
        *("get_task", "list_attempts", "diagnose_task", "trace_task", "status"),
    ),
    "leasing_tasks.add_task": ("enqueue_task", "enqueue_tasks"),
    "leasing_tasks.change_task": (
        *("claim_next_task", "end_claim", "heartbeat_task", "complete_task", "fail_task"),
        *("heartbeat_tasks", "complete_tasks", "fail_tasks", "give_back_tasks"),
        "report_progress",
        "store_checkpoint",
    ),
    "leasing_tasks.cancel_task": ("cancel_task",),
    "leasing_tasks.retry_task": ("retry_task",),
    "leasing_tasks.reschedule_task": ("reschedule_task",),
    "leasing_tasks.view_queue": ("list_queues",),
    "leasing_tasks.pause_queue": ("pause_queue", "resume_queue"),
    "leasing_tasks.view_schedule": ("list_schedules",),
    "leasing_tasks.change_schedule": ("pause_schedule", "resume_schedule", "run_schedule"),
    "leasing_tasks.view_worker": ("list_workers",),
    "leasing_tasks.control_generator": ("start", "stop"),
}
#: What everybody may call.
OPEN = {"healthz", "readyz"}
#: Addresses that the document does not describe: its own, and those of no verb.
UNDESCRIBED = {"openapi-json", "openapi-view", "api-root", None}
#: What routes ask for in addition to let a client see more.
MORE = {"leasing_tasks.view_payload", "leasing.view_auditentry"}


class Verb(NamedTuple):
    """A verb as the document has it: ``fields`` are those that its body may have."""

    method: str
    path: str
    name: str
    required: tuple[str, ...]
    fields: frozenset[str]

    def at(self, **keys: str) -> str:
        """Return its address below /api, of rows with these keys; by default 1."""
        return re.sub(r"{(\w+)}", lambda found: keys.get(found[1], "1"), self.path)

    @property
    def body(self) -> dict[str, Any] | None:
        """An empty one: who is let in is asked before what they want."""
        return None if self.method == "GET" else {}


#: The document itself, and its page.
DOCUMENTS = [
    Verb("GET", "/openapi.json", "openapi-json", ("leasing.view_lease",), frozenset()),
    Verb("GET", "/docs", "openapi-view", ("leasing.view_lease",), frozenset()),
]


def documented() -> Iterator[Verb]:
    document = api.get_openapi_schema(path_prefix="")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            required: list[set[str]] = [
                set(*each.values()) for each in operation.get("security", ())
            ]
            assert all(each == required[0] for each in required)
            names = tuple(sorted(required[0])) if required else ()
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            fields = document["components"]["schemas"].get(schema, {}).get("properties", ())
            yield Verb(method.upper(), path, operation["operationId"], names, frozenset(fields))


ALL = list(documented())
EACH = pytest.mark.parametrize(
    "verb",
    [*DOCUMENTS, *(verb for verb in ALL if verb.name not in OPEN)],
    ids=lambda verb: verb.name,
)


def test_every_verb_of_the_document_is_known_with_what_it_asks_for() -> None:
    expected = {(name, (permission,)) for permission in VERBS for name in VERBS[permission]}
    assert {(verb.name, verb.required) for verb in ALL} == expected | {(name, ()) for name in OPEN}


def test_every_address_of_the_api_is_described() -> None:
    patterns, _, _ = api.urls
    names = {getattr(pattern, "name", pattern) for pattern in patterns}
    assert names == {verb.name for verb in ALL} | UNDESCRIBED
    hidden = [
        (sorted(operation.methods), path)
        for router in api._get_bound_routers()
        for path, view in router.path_operations.items()
        for operation in view.operations
        if not operation.include_in_schema
    ]
    assert hidden == [(["HEAD"], "/healthz"), (["HEAD"], "/readyz")]


def test_the_scopes_are_what_the_verbs_ask_for() -> None:
    assert known_scopes() == VERBS.keys() | MORE


CSRF = {"X-CSRFToken": "t" * 32}


def browser(user: User) -> Client:
    """A browser in which ``user`` is signed in, and which is held to Django's CSRF token."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = "t" * 32
    return client


def user_with(name: str, permissions: set[str], **fields: Any) -> User:
    user = User.objects.create_user(name, **fields)
    codes = [permission.partition(".") for permission in permissions]
    rows = Permission.objects.filter(codename__in=[code for _, _, code in codes])
    apps = {app for app, _, _ in codes}
    user.user_permissions.set(rows.filter(content_type__app_label__in=apps))
    return user


def bearer(name: str, scopes: set[str], **limits: Any) -> dict[str, str]:
    _, secret = ApiToken.objects.issue(name, scopes=scopes, **limits)
    return {"Authorization": f"Bearer {secret}"}


def status_of(verb: Verb, client: Client, address: str = "127.0.0.1", **headers: str) -> int:
    """The status of the answer to ``client`` at ``address``."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    body = b"" if verb.method == "GET" else b"{"  # who comes is asked before what they want
    return client.generic(
        verb.method,
        f"/api{verb.at()}",
        body,
        content_type="application/json",
        headers=given,
        REMOTE_ADDR=address,
    ).status_code


@EACH
def test_each_user_may_call_what_it_has_the_permission_for(verb: Verb) -> None:
    (permission,) = verb.required
    assert status_of(verb, Client()) == 401
    staff = browser(user_with("staff", set(), is_staff=True))
    assert status_of(verb, staff, **CSRF) == 403
    others = browser(user_with("others", known_scopes() - {permission}))
    assert status_of(verb, others, **CSRF) == 403
    allowed = browser(user_with("allowed", {permission}))
    assert status_of(verb, allowed, **CSRF) not in (401, 403)
    if verb.method != "GET":
        for wrong in ({}, {"X_CSRFToken": "f" * 32}):
            assert status_of(verb, allowed, **wrong) == 403
    root = User.objects.create_user("root", is_superuser=True)
    assert status_of(verb, browser(root), **CSRF) not in (401, 403)
    User.objects.filter(pk=root.pk).update(is_active=False)
    assert status_of(verb, browser(root), **CSRF) == 401


@EACH
def test_each_token_may_call_what_it_has_the_scope_for(verb: Verb) -> None:
    (permission,) = verb.required
    client = Client(enforce_csrf_checks=True)
    others = bearer("others", known_scopes() - {permission})
    assert status_of(verb, client, **others) == 403
    refused = call(client, verb.method, verb.at(), verb.body, headers=others)
    assert permission in refused.body["error"]
    assert status_of(verb, client, **bearer("allowed", {permission})) not in (401, 403)
    client.force_login(User.objects.create_user("root", is_superuser=True))
    assert status_of(verb, client, Authorization="Bearer wrong", **CSRF) == 401


@EACH
@pytest.mark.usefixtures("compatible")
def test_a_stranger_may_call_everything_from_near_and_nothing_from_far(verb: Verb) -> None:
    client = Client(enforce_csrf_checks=True)
    assert status_of(verb, client) not in (401, 403)
    for address in ("203.0.113.7", "127.0.0.1"):
        assert status_of(verb, client, address, X_Forwarded_For="127.0.0.1") == 403
    assert status_of(verb, client, "203.0.113.7") == 403


@pytest.mark.parametrize("verb", [verb for verb in ALL if verb.name in OPEN])
def test_what_is_open_is_open_to_everybody(verb: Verb) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Forwarded-For": "127.0.0.1"}):
        answer = call(Client(), verb.method, verb.at(), headers=headers, REMOTE_ADDR="203.0.113.7")
        assert answer.status == 200


# The limits of a token: its prefix and its queues


@pytest.fixture
def limited(settings: Settings) -> dict[str, str]:
    """The credentials of a token with every scope, for resources and tasks that are not there."""
    settings.TASK_QUEUE = {"QUEUES": ["default", "own"]}
    return bearer("limited", known_scopes(), prefix="own:", queues=["own"])


def of_row(key: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "verb", [verb for verb in ALL if f"{{{key}}}" in verb.path], ids=lambda verb: verb.name
    )


def schedule_of(queue: str) -> Schedule:
    every = timedelta(hours=1)
    schedule: Schedule = Schedule.objects.create(
        name="other", task_name="jobs.echo", queue=queue, every=every, next_at=after(every)
    )
    return schedule


#: What a body says that gets as far as the row, in the fields that it has.
SAID = {
    "reason": "x",
    "queue": "own",
    "error": "x",
    "state": {},
    "processor": "me",
    "resource": "own:1",
    "holder": "me",
}


def said(verb: Verb, row: Leasable | None = None) -> dict[str, Any] | None:
    """A body for ``verb``, with the proof of the grant of ``row``."""
    if verb.method == "GET":
        return None
    proof = {} if row is None else {"lease_key": lease_key_of(row)}
    return {name: value for name, value in (SAID | proof).items() if name in verb.fields}


def both(
    headers: dict[str, str], verb: Verb, there: str, nowhere: str, row: Leasable | None = None
) -> tuple[Answer, Answer]:
    """The answers about a row outside of the limits, and about one that does not exist."""
    (key,) = re.findall(r"{(\w+)}", verb.path)
    asked = (
        call(Client(), verb.method, verb.at(**{key: each}), said(verb, row), headers=headers)
        for each in (there, nowhere)
    )
    answers = next(asked), next(asked)
    assert 400 not in {answer.status for answer in answers}  # or it would not have got so far
    return answers


def is_as_missing(there: Answer, nowhere: Answer) -> bool:
    """Return True if the two answers differ in the id at most."""
    texts = [re.sub(r"\d+", "N", str(each.body)) for each in (there, nowhere)]
    return (there.status, texts[0]) == (nowhere.status, texts[1])


@of_row("task_id")
def test_a_task_of_another_queue_is_as_one_that_is_not_there(
    verb: Verb, limited: dict[str, str]
) -> None:
    task = make_task(state="running", holder="me")
    before = Task.objects.filter(pk=task.pk).values().get()
    assert is_as_missing(*both(limited, verb, str(task.pk), str(task.pk + 1), task))
    assert Task.objects.filter(pk=task.pk).values().get() == before


@of_row("lease_id")
@pytest.mark.parametrize("kind", ["lease", "task"])
def test_a_lease_outside_of_the_prefix_is_as_one_that_is_not_there(
    verb: Verb, kind: str, limited: dict[str, str]
) -> None:
    lease = Lease.objects.acquire("other:1", holder="me")
    task = make_task(state="running", holder="me")
    row: Leasable = lease if kind == "lease" else task
    rows: Any = type(row).lease_rows().filter(pk=row.pk)
    before = rows.values().get()
    assert is_as_missing(*both(limited, verb, row.lease_id, f"{row.lease_id}9", row))
    assert rows.all().values().get() == before


@pytest.mark.parametrize(
    "verb",
    [verb for verb in ALL if verb.path.startswith("/queues/{name}")],
    ids=lambda verb: verb.name,
)
def test_another_queue_is_refused_by_name(verb: Verb, limited: dict[str, str]) -> None:
    answer = call(Client(), verb.method, verb.at(name="default"), said(verb), headers=limited)
    assert (answer.status, "own" in answer.body["error"]) == (403, True)


@pytest.mark.parametrize(
    "verb",
    [verb for verb in ALL if verb.path.startswith("/schedules/{name}")],
    ids=lambda verb: verb.name,
)
def test_a_schedule_of_another_queue_is_as_one_that_is_not_there(
    verb: Verb, limited: dict[str, str]
) -> None:
    schedule = schedule_of("default")
    before = Schedule.objects.filter(pk=schedule.pk).values().get()
    there, nowhere = both(limited, verb, schedule.name, "nowhere")
    assert (there.status, nowhere.status) == (404, 404)
    assert Schedule.objects.filter(pk=schedule.pk).values().get() == before


@pytest.mark.parametrize(
    "verb",
    [verb for verb in ALL if verb.method == "GET" and verb.name.startswith("list_")
     and "{" not in verb.path],
    ids=lambda verb: verb.name,
)  # fmt: skip
def test_a_list_has_nothing_from_outside(verb: Verb, limited: dict[str, str]) -> None:
    held, _ = Lease.objects.acquire("other:1", holder="me"), Lease.objects.acquire("own:1")
    make_task(state="running", holder="me", name="jobs.echo")
    schedule_of("default")
    answer = call(Client(), "GET", verb.path, headers=limited)
    assert answer.status == 200
    (rows,) = (value for value in answer.body.values() if isinstance(value, list))
    seen = [row.get("resource") or row.get("queue") or row.get("name") for row in rows]
    assert not [each for each in seen if not str(each).startswith("own")]
    assert held.resource not in str(answer.body)


NAMED = {
    "acquire_lease": {"resource": "other:1", "holder": "me"},
    "renew_lease": {"resource": "other:1", "holder": "me", "lease_key": "k" * 43},
    "release_lease": {"resource": "other:1", "holder": "me", "lease_key": "k" * 43},
}


@pytest.mark.parametrize("name", NAMED)
def test_a_resource_outside_of_the_prefix_is_refused_by_name(
    name: str, limited: dict[str, str]
) -> None:
    (verb,) = (each for each in ALL if each.name == name)
    answer = call(Client(), verb.method, verb.path, NAMED[name], headers=limited)
    assert (answer.status, "'own:'" in answer.body["error"]) == (403, True)
    assert not Lease.objects.exists()


def test_a_lease_of_a_batch_outside_of_the_prefix_is_refused_alone(
    limited: dict[str, str],
) -> None:
    leases = [Lease.objects.acquire(name, holder="me") for name in ("other:1", "own:1")]
    items = [
        {"resource": each.resource, "holder": "me", "lease_key": lease_key_of(each)}
        for each in leases
    ]
    answer = call(Client(), "PUT", "/leases/renew/batch", {"leases": items}, headers=limited)
    assert [each["status"] for each in answer.body["results"]] == [403, 201]
    assert Lease.objects.get(resource="other:1").renewals == 0


@pytest.mark.parametrize(
    "name", ["heartbeat_tasks", "complete_tasks", "fail_tasks", "give_back_tasks"]
)
def test_a_task_of_a_batch_in_another_queue_is_as_one_that_is_not_there(
    name: str, limited: dict[str, str]
) -> None:
    (verb,) = (each for each in ALL if each.name == name)
    task = make_task(state="running", holder="me")
    own = make_task(state="running", holder="me", queue="own")
    before = Task.objects.filter(pk=task.pk).values().get()
    more = {"error": "x"} if name == "fail_tasks" else {}
    items = [
        {"id": key, "lease_key": lease_key_of(row), **more}
        for key, row in ((task.pk, task), (10**9, task), (own.pk, own))
    ]
    answer = call(Client(), verb.method, verb.path, {"tasks": items}, headers=limited)
    there, nowhere, mine = ({**each, "id": 0} for each in answer.body["results"])
    assert there == nowhere
    assert (there["status"] >= 400, mine["status"]) == (True, 202)
    assert Task.objects.filter(pk=task.pk).values().get() == before
