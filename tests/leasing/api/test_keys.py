"""Proofs of terms over HTTP: lease keys, and requests that are sent again."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest
from django.core.signing import Signer
from django.test import Client
from pytest_django import Settings

from leasing.api.keys import WRONG_KEY, TermOut, lease_key_of
from leasing.api.schemas import Term
from leasing.models import ApiToken, Lease, LeaseEvent
from tests.api_calls import Answer, call
from tests.factories import make_lease
from tests.leasing.support import expire, usurp
from tests.pages import signed_in

pytestmark = pytest.mark.django_db

TERM = {"resource": "crane:1", "holder": "me"}
KEY = "0f0e0d0c-0b0a-4908-8706-050403020100"
#: The verbs of a holder.
VERBS = [("PUT", "/leases/renew"), ("DELETE", "/leases/release"), ("DELETE", "/leases/{id}")]
EACH_VERB = pytest.mark.parametrize(("method", "path"), VERBS)


@pytest.fixture
def client() -> Client:
    """A user who may change leases, in the closed mode."""
    return signed_in("leasing.change_lease", "leasing.view_lease", name="ann")


def acquired(client: Client, **more: Any) -> dict[str, Any]:
    answer = call(client, "POST", "/leases", TERM, **more)
    assert answer.status == 201
    body: dict[str, Any] = answer.body
    return body


def by_key(client: Client, method: str, path: str, key: str | None) -> Answer:
    sent = TERM if key is None else {**TERM, "lease_key": key}
    lease = Lease.objects.filter(resource="crane:1").first()
    return call(client, method, path.format(id=lease.pk if lease else 1), sent)


def again(client: Client, key: str = KEY, **body: Any) -> Answer:
    return call(client, "POST", "/leases", TERM | body, headers={"Idempotency-Key": key})


# The key


@EACH_VERB
def test_the_key_of_the_grant_acts_for_it_whatever_name_is_given(
    client: Client, method: str, path: str
) -> None:
    key = acquired(client)["lease_key"]
    lease = Lease.objects.get()
    path = path.format(id=lease.pk)
    body = {**TERM, "holder": "another name", "lease_key": key}
    assert call(client, method, path, body).status in (200, 201)


@EACH_VERB
def test_a_wrong_key_and_a_wrong_grant_are_told_the_same(
    client: Client, method: str, path: str
) -> None:
    unknown = by_key(client, method, path, "x")  # no such lease
    acquired(client)
    other = make_lease(resource="crane:2", state="active", holder="me")
    answers = [unknown, *(by_key(client, method, path, key) for key in ("", "é", "x" * 43))]
    answers.append(by_key(client, method, path, lease_key_of(other)))
    key = lease_key_of(Lease.objects.get(resource="crane:1"))
    usurp(Lease.objects.get(resource="crane:1"), "me")  # by its own name
    answers.append(by_key(client, method, path, key))
    assert {(each.status, each.body["error"]) for each in answers} == {(409, WRONG_KEY)}
    assert not LeaseEvent.objects.filter(kind="refused").exists()


@EACH_VERB
def test_who_has_proven_the_grant_learns_that_it_has_expired(
    client: Client, method: str, path: str
) -> None:
    key = acquired(client)["lease_key"]
    expire(Lease.objects.get())
    answer = by_key(client, method, path, key)
    assert answer.status == 409
    assert "it expired" in answer.body["error"]


@EACH_VERB
def test_the_closed_mode_demands_the_key(client: Client, method: str, path: str) -> None:
    acquired(client)
    answer = by_key(client, method, path, None)
    assert answer.status == 400
    assert "lease_key" in answer.body["error"]
    assert Lease.objects.active().exists()


@EACH_VERB
def test_the_compatible_mode_judges_a_key_that_is_sent(
    compatible: None, method: str, path: str
) -> None:
    stranger = Client()
    acquired(stranger)
    assert by_key(stranger, method, path, "wrong").status == 409
    assert by_key(stranger, method, path, None).status in (200, 201)


@EACH_VERB
def test_who_has_credentials_sends_the_key_in_the_compatible_mode_too(
    client: Client, compatible: None, method: str, path: str
) -> None:
    """A user who may change leases could else act for every holder, from any address."""
    acquired(client)
    _, secret = ApiToken.objects.issue("ci", scopes=["leasing.change_lease"])
    for each in (client, Client(headers={"Authorization": f"Bearer {secret}"})):
        answer = by_key(each, method, path, None)
        assert (answer.status, "lease_key" in answer.body["error"]) == (400, True)
    assert Lease.objects.active().exists()


def test_a_key_that_was_signed_before_the_secret_key_was_replaced_is_accepted(
    client: Client, settings: Settings
) -> None:
    key = acquired(client)["lease_key"]
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the next one" * 5
    client = signed_in("leasing.change_lease", name="bob")
    renewed = by_key(client, "PUT", "/leases/renew", key)
    assert (renewed.status, renewed.body["lease_key"] == key) == (201, False)
    settings.SECRET_KEY_FALLBACKS = []
    assert by_key(client, "PUT", "/leases/renew", key).status == 409
    assert by_key(client, "PUT", "/leases/renew", renewed.body["lease_key"]).status == 201


@pytest.mark.parametrize("secret", ["ä" * 50, b"\xff" * 50])
def test_a_key_is_what_djangos_signing_makes_of_the_grant(
    settings: Settings, secret: str | bytes
) -> None:
    settings.SECRET_KEY = secret
    lease = make_lease(state="active")
    signed = f"leasing.lease:{lease.pk}:{lease.grant_id}"
    assert lease_key_of(lease) == Signer(salt="leasing.lease_key").signature(signed)


def test_a_release_that_is_sent_again_is_answered_the_same(client: Client) -> None:
    key = acquired(client)["lease_key"]
    first = by_key(client, "DELETE", "/leases/release", key)
    assert (first.status, first.body["released_at"] is None) == (201, False)
    second = by_key(client, "DELETE", "/leases/release", key)
    assert (second.status, second.body) == (first.status, first.body)


@EACH_VERB
def test_no_verb_counts_after_a_revocation(client: Client, method: str, path: str) -> None:
    made = acquired(client)
    key, path = made["lease_key"], path.format(id=made["id"])
    assert Lease.objects.all().revoke() == 1
    for _ in range(2):
        answer = by_key(client, method, path, key)
        assert (answer.status, "was lost" in answer.body["error"]) == (409, True)


def test_a_release_is_answered_the_same_after_another_term_was_revoked(client: Client) -> None:
    acquired(client)
    Lease.objects.all().revoke()
    key = acquired(client)["lease_key"]
    for _ in range(2):
        assert by_key(client, "DELETE", "/leases/release", key).status == 201


def test_nobody_but_the_holder_is_told_the_key(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = acquired(client)
    key = made["lease_key"]
    answers = [call(client, "GET", path) for path in ("/leases", f"/leases/{made['id']}")]
    answers.append(again(client))  # a conflict
    assert by_key(client, "DELETE", "/leases/release", "wrong").status == 409
    answers.append(by_key(client, "DELETE", "/leases/release", key))
    assert key not in str([each.body for each in answers])
    assert key not in repr(Term(**TERM, lease_key=key))
    assert key not in repr(TermOut(lease_key=key, ttl=1, remaining=1, yield_to="", is_last=False))
    assert key not in caplog.text


@EACH_VERB
def test_a_name_beside_a_key_must_be_one(client: Client, method: str, path: str) -> None:
    made = acquired(client)
    body = {"resource": "crane:1", "lease_key": made["lease_key"]}
    path = path.format(id=made["id"])
    assert call(client, method, path, {**body, "holder": ""}).status == 400
    assert call(client, method, path, body).status in (200, 201)


# The same request again


def test_a_request_that_is_sent_again_finds_its_own_grant(client: Client) -> None:
    first, second = again(client), again(client, KEY.upper())
    assert (first.status, second.status) == (201, 201)
    assert second.body["remaining"] <= first.body.pop("remaining")
    second.body.pop("remaining")
    assert first.body == second.body
    assert Lease.objects.get().grants == LeaseEvent.objects.count() == 1


def test_it_may_wait_for_another_time_and_quote_its_key(client: Client) -> None:
    token = again(client).body["fencing_token"]
    assert again(client, f'"{KEY}"').body["fencing_token"] == token


@pytest.mark.parametrize(
    "other", [{"holder": "you"}, {"ttl": 20}, {"resource": "crane:2"}], ids=lambda body: [*body][0]
)
def test_another_body_is_another_request(client: Client, other: dict[str, Any]) -> None:
    again(client)
    status = 201 if "resource" in other else 409
    assert again(client, **other).status == status


def test_another_clients_request_under_the_same_key_is_another(client: Client) -> None:
    again(client)
    bob = signed_in("leasing.change_lease", name="bob")
    assert again(bob).status == 409


def test_a_user_with_the_name_of_a_token_is_another_client(client: Client) -> None:
    _, secret = ApiToken.objects.issue("ci", scopes=["leasing.change_lease"])
    made = again(Client(headers={"Authorization": f"Bearer {secret}"}))
    user = signed_in("leasing.change_lease", name="token ci")
    assert (made.status, again(user).status) == (201, 409)


@pytest.mark.parametrize("end", ["released", "revoked", "expired"])
def test_a_request_whose_grant_has_ended_is_granted_no_other(client: Client, end: str) -> None:
    made = again(client).body
    lease = Lease.objects.get()
    match end:
        case "released":
            lease.release()
        case "revoked":
            Lease.objects.all().revoke()
        case "expired":
            expire(lease)
    refused = again(client)
    assert (refused.status, "was lost" in refused.body["error"]) == (409, True)
    assert Lease.objects.get().fencing_token >= made["fencing_token"]
    assert not Lease.objects.active().exists()
    renewed = again(client, str(uuid.uuid4()))
    assert (renewed.status, renewed.body["grants"]) == (201, 2)


def test_an_old_request_after_other_grants_is_a_new_one_with_another_key(client: Client) -> None:
    old = again(client).body
    Lease.objects.get().release()
    other = Lease.objects.acquire("crane:1", holder="you")
    assert again(client).status == 409  # held by the other
    other.release()
    new = again(client).body
    assert new["grants"] == 3
    assert new["lease_key"] != old["lease_key"]
    assert by_key(client, "PUT", "/leases/renew", old["lease_key"]).status == 409


@pytest.mark.parametrize(
    "key", ["", "x", KEY[:-1], f"{{{KEY}}}", f"urn:uuid:{KEY}", KEY.replace("-", ""), "é" * 36]
)
def test_a_key_that_is_no_uuid_is_refused(client: Client, key: str) -> None:
    answer = call(client, "POST", "/leases", TERM, HTTP_IDEMPOTENCY_KEY=key)
    assert (answer.status, "Idempotency-Key" in answer.body["error"]) == (400, True)


# What the holder is told


def test_a_grant_and_a_renewal_tell_for_how_long_and_who_wants_it(client: Client) -> None:
    made = call(client, "POST", "/leases", {**TERM, "ttl": 20}).body
    assert (made["ttl"], made["yield_to"], made["is_last"]) == (20, "", False)
    assert 0 < made["remaining"] <= 20
    with pytest.raises(Exception, match="held by me"):
        Lease.objects.acquire("crane:1", holder="you", priority=1, preempt_after=5)
    body = {**TERM, "lease_key": made["lease_key"]}
    renewed = call(client, "PUT", "/leases/renew", body).body
    assert (renewed["ttl"], renewed["yield_to"], renewed["is_last"]) == (20, "you", True)
    assert renewed["lease_key"] == made["lease_key"]
    assert 0 < renewed["remaining"] <= 20
