"""Programs that come with a token."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client
from pytest_django import Settings

from leasing.functions import after
from leasing.models import ApiToken, Lease, LeaseEvent
from leasing.validation.names import MAX_NAME, TOKEN
from tests.api_calls import Answer, call

pytestmark = pytest.mark.django_db

TERM = {"resource": "crane:1", "holder": "me"}
VIEW, CHANGE = "leasing.view_lease", "leasing.change_lease"


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def secret() -> str:
    return ApiToken.objects.issue("ci", scopes=[VIEW, CHANGE])[1]


def asked(secret: str, **extra: Any) -> Answer:
    return call(Client(), "GET", "/leases", headers=bearer(secret), **extra)


def test_a_token_is_let_in_from_everywhere_and_needs_no_csrf_token(secret: str) -> None:
    client = Client(enforce_csrf_checks=True)
    headers = bearer(secret) | {"X-Forwarded-For": "203.0.113.7"}
    answer = call(client, "POST", "/leases", TERM, headers=headers, REMOTE_ADDR="198.51.100.1")
    assert answer.status == 201
    assert ApiToken.objects.get().last_used_at is not None


def test_every_wrong_credential_gets_the_same_answer(secret: str) -> None:
    expired, revoked = (
        ApiToken.objects.issue(name, scopes=[VIEW])[1] for name in ("expired", "revoked")
    )
    ApiToken.objects.filter(name="expired").update(expires_at=after(timedelta(seconds=-1)))
    ApiToken.objects.filter(name="revoked").revoke()
    wrong = [expired, revoked, f"{secret[:-1]}{'B' if secret[-1] == 'A' else 'A'}", "", "x" * 5000]
    answers = [asked(each) for each in wrong] + [call(Client(), "GET", "/leases")]
    assert {(each.status, each.body["error"]) for each in answers} == {
        (401, "Sign in, or send a valid token.")
    }
    assert {each.headers["WWW-Authenticate"] for each in answers} == {"Bearer"}
    assert asked(secret).status == 200


def test_a_token_is_judged_alone(secret: str, admin_user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert call(client, "GET", "/tasks", headers=bearer(secret)).status == 403
    assert call(client, "GET", "/tasks", headers=bearer("wrong")).status == 401
    assert call(client, "POST", "/leases", TERM, headers=bearer(secret)).status == 201
    assert call(client, "GET", "/tasks", headers={"Authorization": "Basic eDp5"}).status == 200


@pytest.mark.usefixtures("compatible")
def test_a_token_is_judged_as_ever_in_the_compatible_mode(secret: str) -> None:
    assert call(Client(), "GET", "/tasks").status == 200
    assert call(Client(), "GET", "/tasks", headers=bearer(secret)).status == 403
    assert call(Client(), "GET", "/tasks", headers=bearer("wrong")).status == 401


def test_a_token_changes_nothing_while_the_site_is_read_only(
    secret: str, settings: Settings
) -> None:
    settings.LEASING = {"READ_ONLY": True}
    assert asked(secret).status == 200
    assert call(Client(), "POST", "/leases", TERM, headers=bearer(secret)).status == 403
    assert not Lease.objects.exists()


# Bounds, prefixes and queues


def by(secret: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    return call(Client(), method, path, body, headers=bearer(secret) | headers)


def test_the_ledgers_have_room_for_the_name_of_every_token() -> None:
    longest = "x" * (MAX_NAME - len(TOKEN))
    _, secret = ApiToken.objects.issue(longest, scopes=["leasing.revoke_lease"])
    lease = Lease.objects.acquire("crane:1")
    answer = by(secret, "PUT", f"/leases/{lease.pk}/revoke", {"reason": "gone"})
    assert answer.status == 200
    assert LeaseEvent.objects.filter(actor=TOKEN + longest).exists()
    with pytest.raises(ValidationError):
        ApiToken.objects.issue(longest + "x", scopes=[VIEW])
