"""Routes of leases beyond the sample's: batches, names, events, revocation."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from leasing.api.keys import WRONG_KEY, lease_key_of
from leasing.models import AuditEntry, Lease, LeaseEvent
from leasing.store import MAX_RENEWED
from tests.api_calls import Answer, call
from tests.factories import make_lease, make_task
from tests.leasing.support import OtherSession, expire
from tests.pages import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    """A user who may do everything to leases, in the closed mode."""
    return signed_in(
        "leasing.change_lease", "leasing.view_lease", "leasing.revoke_lease", name="ann"
    )


def renew(client: Client, *terms: dict[str, Any]) -> Answer:
    return call(client, "PUT", "/leases/renew/batch", {"leases": list(terms)})


def term(lease: Lease) -> dict[str, Any]:
    return {"resource": lease.resource, "lease_key": lease_key_of(lease)}


def test_the_process_of_the_server_is_not_that_of_the_holder(client: Client) -> None:
    body = {"resource": "crane:1", "holder": "bob", "ttl": 30}
    assert call(client, "POST", "/leases", body).status == 201
    assert Lease.objects.get().metadata == {}


# Renewals of many


def test_each_of_many_is_renewed_and_answered_in_its_place(client: Client) -> None:
    leases = [make_lease(state="active") for _ in range(3)]
    leases.reverse()
    answer = renew(client, *map(term, leases))
    assert answer.status == 200
    results = answer.body["results"]
    assert [each["status"] for each in results] == [201] * 3
    for lease, result in zip(leases, results, strict=True):
        shown = result["lease"]
        assert (shown["id"], shown["lease_key"]) == (lease.pk, lease_key_of(lease))
        lease.refresh_from_db()
        assert lease.renewals == 1
        assert shown["ttl"] - 1 < shown["remaining"] <= shown["ttl"]
        alone = call(client, "GET", f"/leases/{lease.pk}").body
        assert shown["renewed_at"] >= alone.pop("renewed_at")
        assert {name: shown[name] for name in alone} == alone


def test_one_that_is_refused_leaves_the_others(client: Client) -> None:
    good, late, other = (make_lease(state="active") for _ in range(3))
    expire(late)
    answer = renew(
        client,
        term(late),
        {"resource": "nobody's", "lease_key": "x"},
        term(good),
        {**term(good), "resource": other.resource},
        {**term(good), "resource": "/api/tasks/1"},
        {**term(good), "resource": " "},
    )
    results = answer.body["results"]
    assert [each["status"] for each in results] == [409, 409, 201, 409, 409, 400]
    assert "it expired" in results[0]["error"]
    assert results[1]["error"] == results[3]["error"] == WRONG_KEY
    assert [each["lease"] is None for each in results] == [True, True, False, True, True, True]
    assert Lease.objects.filter(renewals=1).get() == good


def test_a_holder_without_a_key_is_found_by_its_name(client: Client, compatible: None) -> None:
    mine, theirs = make_lease(state="active"), make_lease(state="active")
    answer = renew(
        Client(),
        {"resource": mine.resource, "holder": mine.holder},
        {"resource": theirs.resource, "holder": mine.holder},
    )
    assert [each["status"] for each in answer.body["results"]] == [201, 404]


def test_what_is_wrong_in_the_form_of_one_refuses_all(client: Client) -> None:
    good = make_lease(state="active")
    for wrong in ({}, {"resource": 1}, {**term(good), "ttl": 5}, None, "x"):
        answer: Any = call(client, "PUT", "/leases/renew/batch", {"leases": [term(good), wrong]})
        assert answer.status == 400
    for none in ([], [term(good)] * (MAX_RENEWED + 1), None, term(good)):
        assert call(client, "PUT", "/leases/renew/batch", {"leases": none}).status == 400
    assert not Lease.objects.filter(renewals__gt=0).exists()


def test_it_takes_as_many_statements_for_many_as_for_one(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    leases = [make_lease(state="active") for _ in range(20)]
    with django_assert_max_num_queries(10):  # two of the session and its user
        assert renew(client, *map(term, leases)).status == 200
    assert Lease.objects.filter(renewals=1).count() == 20


@pytest.mark.django_db(transaction=True)
def test_one_that_is_locked_is_renewed_when_its_lock_is_free(
    client: Client, other_session: OtherSession, on_postgresql: None
) -> None:
    free, locked = make_lease(state="active"), make_lease(state="active")
    other_session.lock(locked)
    release = OtherSession()
    try:
        answer = release.start(renew, client, term(locked), term(free))
        other_session.commit()
        results = answer.result(20).body["results"]
    finally:
        release.close()
    assert [each["status"] for each in results] == [201, 201]


# By name


@pytest.mark.parametrize("name", ["crane:1", "/jobs/nightly", "a/b?c=d&e", "电梯", "x" * 200])
def test_a_lease_is_found_by_its_name(client: Client, name: str) -> None:
    lease = Lease.objects.acquire(name)
    answer = client.get("/api/leases/named", {"resource": name})
    assert (answer.status_code, answer.json()["id"]) == (200, lease.pk)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?resource=", 400),
        ("?resource=%00", 400),
        ("?resource=" + "x" * 201, 400),
        ("?resource=%20x", 400),
        ("?resource=nobody", 404),
    ],
)
def test_a_name_that_is_none_is_not_found(client: Client, query: str, status: int) -> None:
    assert call(client, "GET", f"/leases/named{query}").status == status


# Events


def test_the_events_of_a_lease_are_listed_newest_first(client: Client) -> None:
    lease = Lease.objects.acquire("crane:1", holder="me")
    lease.release()
    Lease.objects.acquire("crane:1", holder="you")
    Lease.objects.acquire("crane:2", holder="me")
    found = call(client, "GET", f"/leases/{lease.pk}/events").body["events"]
    assert [(each["kind"], each["holder"]) for each in found] == [
        ("acquired", "you"),
        ("released", "me"),
        ("acquired", "me"),
    ]
    assert found[0]["previous_holder"] == "me"
    first = call(client, "GET", f"/leases/{lease.pk}/events?limit=2").body
    rest = call(client, "GET", f"/leases/{lease.pk}/events?limit=2&cursor={first['next']}").body
    assert [*first["events"], *rest["events"]] == found
    assert "next" not in rest


def test_a_task_has_no_events(client: Client) -> None:
    task = make_task(state="running")
    assert call(client, "GET", f"/leases/task:{task.pk}/events").body == {"events": []}
    assert call(client, "GET", "/leases/task:99/events").status == 404


# Revocation


def test_an_operator_takes_a_lease_away_and_the_audit_says_why(client: Client) -> None:
    lease = Lease.objects.acquire("crane:1", holder="me")
    path, said = f"/leases/{lease.pk}/revoke", {"reason": "it hangs"}
    revoked = call(client, "PUT", path, said)
    assert revoked.status == 200
    assert revoked.body["released_at"]
    assert revoked.body["fencing_token"] > lease.fencing_token
    event = LeaseEvent.objects.first()
    assert event is not None
    assert (event.kind, event.reason, event.actor) == ("revoked", "it hangs", "ann")
    entry = AuditEntry.objects.get()
    assert (entry.verb, entry.by, entry.via, entry.changed) == ("revoke", "ann", "api", 1)
    again = call(client, "PUT", path, said)
    assert (again.status, "not held" in again.body["error"]) == (409, True)
    body = {"resource": "crane:1", "lease_key": lease_key_of(lease)}
    refused = call(client, "PUT", "/leases/renew", body)
    assert (refused.status, "was lost" in refused.body["error"]) == (409, True)


def test_a_task_is_taken_away_by_the_id_of_its_lease(client: Client) -> None:
    task = make_task(state="running")
    path = f"/leases/task:{task.pk}/revoke"
    assert call(client, "PUT", path, {"reason": "it hangs"}).status == 200
    task.refresh_from_db()
    assert task.status == "ready"
    assert call(client, "PUT", "/leases/task:99/revoke", {"reason": "x"}).status == 404
