"""The lease routes: the contract with clients of the sample service, line by line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from pytest_django import Settings

from leasing.api.schemas import LeaseOut
from leasing.functions import after
from leasing.models import Leasable, Lease, LeaseEvent, leasable_models
from tasks.models import Task
from tests.api_calls import call
from tests.factories import make_lease
from tests.leasing.support import just_before_the_update, usurp

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

TERM = {"resource": "crane:1", "holder": "me"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SNAKE = {
    "id",
    "resource",
    "holder",
    "created_at",
    "renewed_at",
    "released_at",
    "expires_at",
    "fencing_token",
    "grants",
}
#: What only the holder is told.
TERMS = {"lease_key", "ttl", "remaining", "yield_to", "is_last"}
CAMEL_TERMS = {"leaseKey", "yieldTo", "isLast"}
CAMEL = {"createdAt", "renewedAt", "releasedAt", "expiresAt", "fencingToken"}


def lease_that_is(state: str) -> Lease:
    """crane:1, as the holder "me" meets it."""
    if state == "another's":
        return make_lease(resource="crane:1", holder="you")
    return make_lease(resource="crane:1", holder="me", state=state)


def granted_ago(row: Leasable, seconds: float) -> None:
    rows = type(row)._default_manager.filter(pk=row.pk)
    rows.update(acquired_at=after(timedelta(seconds=-seconds)))


def ids(answer: Any) -> list[int | str]:
    return [lease["id"] for lease in answer.body["leases"]]


# The contract


def test_a_lease_shows_both_spellings_and_times_in_utc_with_milliseconds(client: Client) -> None:
    made = call(client, "POST", "/leases", TERM).body
    assert set(made) == SNAKE | CAMEL | TERMS | CAMEL_TERMS
    assert made["createdAt"] == made["created_at"]
    assert made["expiresAt"] == made["expires_at"]
    assert TIME.fullmatch(made["created_at"])
    assert TIME.fullmatch(made["expires_at"])
    assert made["renewed_at"] is made["releasedAt"] is None


def test_a_time_in_another_zone_is_told_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    lease = Lease(pk=1, resource="crane:1", acquired_at=datetime(2030, 1, 1, 2, tzinfo=east))
    assert LeaseOut.of(lease).model_dump()["created_at"] == "2030-01-01T00:00:00.000Z"


def test_every_way_to_see_a_lease_shows_the_same(client: Client) -> None:
    made = call(client, "POST", "/leases", TERM).body
    shown = call(client, "GET", f"/leases/{made['id']}").body
    assert shown == {name: made[name] for name in SNAKE | CAMEL}
    assert call(client, "GET", "/leases").body == {"leases": [shown]}


def test_the_closed_api_answers_in_snake_case_alone(
    admin_client: Client, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "closed"}
    assert set(call(admin_client, "POST", "/leases", TERM).body) == SNAKE | TERMS


def test_the_lease_that_is_answered_is_the_one_in_the_database(client: Client) -> None:
    made = call(client, "POST", "/leases", {**TERM, "ttl": 5}).body
    lease = Lease.objects.get()
    assert made["id"] == lease.pk
    assert made["fencing_token"] == lease.fencing_token
    assert lease.holder == "me"
    assert lease.ttl == timedelta(seconds=5)


def test_a_renewal_moves_the_deadline(client: Client) -> None:
    made = call(client, "POST", "/leases", TERM).body
    Lease.objects.update(expires_at=after(timedelta(seconds=3)))
    renewed = call(client, "PUT", "/leases/renew", TERM).body
    assert renewed["expires_at"] >= made["expires_at"]
    assert TIME.fullmatch(renewed["renewed_at"])


def test_a_release_by_id_says_so_and_frees_the_resource(client: Client) -> None:
    made = call(client, "POST", "/leases", TERM).body
    answer = call(client, "DELETE", f"/leases/{made['id']}", TERM)
    assert answer.body == {"message": "crane:1 was released."}
    assert call(client, "POST", "/leases", {**TERM, "holder": "you"}).status == 201


def test_an_id_and_a_resource_that_do_not_belong_together_release_nothing(client: Client) -> None:
    lease_that_is("active")
    other = make_lease(holder="me")
    assert call(client, "DELETE", f"/leases/{other.pk}", TERM).status == 404
    assert Lease.objects.active().count() == 2


def test_a_late_renewal_leaves_a_note(client: Client) -> None:
    lease_that_is("expired")
    call(client, "PUT", "/leases/renew", TERM)
    assert LeaseEvent.objects.latest("id").kind == "refused"


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize(("method", "path"), [("PUT", "/renew"), ("DELETE", "/release")])
def test_a_verb_acts_with_the_grant_that_it_found(client: Client, method: str, path: str) -> None:
    lease = lease_that_is("active")
    with just_before_the_update(lambda: usurp(lease, "me")):
        assert call(client, method, f"/leases{path}", TERM).status == 404
    lease.refresh_from_db()
    assert (lease.renewals, lease.released_at) == (0, None)


# Lists


def test_a_lease_that_nobody_ever_had_does_not_expire(client: Client) -> None:
    lease = make_lease(state="free")
    shown = call(client, "GET", f"/leases/{lease.pk}").body
    assert shown["expires_at"] is None
    assert TIME.fullmatch(shown["created_at"])
    assert ids(call(client, "GET", "/leases")) == [lease.pk]


def test_leases_of_tasks_stand_between_the_named_ones_by_age(client: Client) -> None:
    for _ in range(3):
        Task.objects.enqueue("jobs.echo")
    waiting, *claimed = sorted((t.pk for t in Task.objects.all()), reverse=True)
    tasks = Task.objects.claim("worker", limit=2)
    assert sorted(task.pk for task in tasks) == sorted(claimed)
    named = [make_lease(), make_lease()]
    rows: list[Leasable] = [named[1], tasks[0], named[0], tasks[1]]
    for age, row in enumerate(rows):
        granted_ago(row, age * 10)
    expected = [named[1].pk, f"task:{tasks[0].pk}", named[0].pk, f"task:{tasks[1].pk}"]
    assert ids(call(client, "GET", "/leases")) == expected
    assert ids(call(client, "GET", "/leases/active?limit=3")) == expected[:3]
    assert waiting not in claimed


def test_a_list_of_leases_does_not_load_what_the_tasks_carry(
    client: Client, django_assert_num_queries: Any
) -> None:
    for _ in range(3):
        Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 1})
    Task.objects.claim("worker", limit=3)
    with django_assert_num_queries(len(leasable_models()) + 1) as queries:  # tasks in two parts
        assert len(ids(call(client, "GET", "/leases"))) == 3
    assert not any("task_data" in query["sql"] for query in queries.captured_queries)


def test_a_list_shows_a_hundred_unless_told_otherwise(client: Client) -> None:
    rows = [Lease(resource=f"crane:{n}") for n in range(103)]
    Lease.objects.bulk_create(rows)
    newest = sorted((lease.pk for lease in Lease.objects.all()), reverse=True)
    assert ids(call(client, "GET", "/leases")) == newest[:100]
    assert ids(call(client, "GET", "/leases?limit=2")) == newest[:2]
    assert ids(call(client, "GET", "/leases?limit=1000")) == newest


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "ten", "", "true", "1.5", "9" * 5000])
def test_a_limit_out_of_bounds_is_refused(client: Client, limit: str) -> None:
    assert call(client, "GET", f"/leases/active?limit={limit}").status == 400


# Names and ids


NO_IDS = ["0", "-1", "x", "1_7", "017", "+17", "%2017", "9" * 30, "9" * 5000, "%00", "lease:1"]
NO_IDS += ["task:", "task:x", "task:99", "task:1:1", "task:%00", "thing:1", "%F0%9F%90%98"]


@pytest.mark.parametrize("lease_id", NO_IDS)
def test_an_id_that_is_none_is_not_found(client: Client, lease_id: str) -> None:
    for lease in (1, 17):
        Lease.objects.create(pk=lease, resource=f"crane:{lease}")
    assert call(client, "GET", f"/leases/{lease_id}").status == 404
    assert call(client, "DELETE", f"/leases/{lease_id}", TERM).status == 404


def test_no_database_is_asked_for_an_id_that_it_could_not_store(
    client: Client, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        assert call(client, "GET", "/leases/order:%00").status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", ""), ("PUT", "/renew"), ("DELETE", "/release"), ("DELETE", "/task:1")],
)
@pytest.mark.parametrize("name", ["/api/tasks/1", "task:1", "order:1", "task:", "leasing_tasks.x"])
def test_the_names_of_leases_of_rows_are_reserved(
    client: Client, method: str, path: str, name: str
) -> None:
    answer = call(client, method, f"/leases{path}", {"resource": name, "holder": "me"})
    assert (answer.status, name in answer.body["error"]) == (409, True)
    assert not Lease.objects.exists()


@pytest.mark.parametrize("name", ["task", "tasks:1", "Task:1", "my:task:1", "lease:1"])
def test_names_that_are_like_those_of_rows_are_free(client: Client, name: str) -> None:
    assert call(client, "POST", "/leases", {"resource": name, "holder": "me"}).status == 201


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/leases", "GET, POST"),
        ("POST", "/leases/active", "GET"),
        ("GET", "/leases/renew", "PUT"),
        ("POST", "/leases/release", "DELETE"),
        ("PUT", "/leases/17", "DELETE, GET"),
        ("OPTIONS", "/leases", "GET, POST"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
def test_another_method_is_refused_with_those_that_are_possible(
    client: Client, method: str, path: str, allowed: str
) -> None:
    answer = call(client, method, path)
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["", "/", "/lease", "/leases/", "/leases/1/2", "/doc", "/%00"])
def test_an_address_that_is_none_is_not_found(client: Client, path: str) -> None:
    answer = call(client, "GET", path or "/")
    assert (answer.status, answer.body["error"]) == (404, "There is no such address.")


# When things go wrong


def test_health_is_answered_without_a_query(client: Client, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        answer = call(client, "GET", "/healthz")
    assert (answer.status, answer.body) == (200, {"message": "ok"})
    assert client.head("/api/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/leases", None),
        ("POST", "/leases", TERM),
        ("POST", "/tasks/next", {"processor": "me"}),
    ],
)
def test_a_database_that_is_away_is_a_503_that_says_when_to_come_back(
    client: Client, method: str, path: str, body: Any
) -> None:
    def away(*args: Any) -> Any:
        raise OperationalError("connection to server at 10.0.0.7 failed")

    with connection.execute_wrapper(away):
        answer = call(client, method, path, body)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert "10.0.0.7" not in answer.body["error"]


def test_a_fault_of_ours_is_a_500_that_keeps_its_secrets_and_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("secret")

    with connection.execute_wrapper(broken):
        with pytest.raises(RuntimeError):  # Django's listeners hear of it.
            call(client, "GET", "/leases/1")
        client.raise_request_exception = False
        answer = call(client, "GET", "/leases/1")
    assert answer.status == 500
    assert "secret" not in str(answer.body)
    assert caplog.records[-1].exc_info


@pytest.mark.django_db(transaction=True)
def test_leases_are_granted_where_each_request_is_a_transaction(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    Task.objects.enqueue("jobs.echo")
    assert call(client, "POST", "/leases", TERM).status == 201
    assert call(client, "PUT", "/leases/renew", TERM).status == 201
    assert call(client, "POST", "/tasks/next", {"processor": "me"}).status == 202


# The document


def test_the_document_names_every_route_with_its_answers_and_bodies(client: Client) -> None:
    document = client.get("/api/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    acquire = document["paths"]["/api/leases"]["post"]
    assert set(acquire["responses"]) == {"201", "400", "401", "403", "409", "413", "415", "503"}
    assert acquire["requestBody"]["required"]
    operations = [op for path in document["paths"].values() for op in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    shown = document["components"]["schemas"]["LeaseOut"]
    assert set(shown["required"]) == SNAKE
    assert set(shown["properties"]) == SNAKE | CAMEL
