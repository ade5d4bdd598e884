"""Tokens of the API in Django's admin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.contrib.sessions.models import Session
from django.test import Client

from leasing.models import ApiToken, AuditEntry
from tests.fixtures import client_with

pytestmark = pytest.mark.django_db

LIST = "/admin/leasing/apitoken/"
SCOPES = ["leasing.change_lease", "leasing.view_lease"]
FORM = {"name": "ci", "scopes": SCOPES[0], "prefix": "report:", "queues": "default, reports"}
FORM |= {"expires_at_0": "2099-01-31", "expires_at_1": "12:00:00"}

viewer = client_with("leasing.view_apitoken", *SCOPES, is_staff=True)
maker = client_with(
    *("leasing.view_apitoken", "leasing.add_apitoken", "leasing.revoke_apitoken", *SCOPES),
    name="olga",
    is_staff=True,
)


def made(client: Client, **more: str) -> tuple[Any, str]:
    """The answer to the form, and the secret in it."""
    response = client.post(f"{LIST}add/", FORM | more)
    assert response.status_code == 200
    secrets = set(re.findall(r"leasing_[\w-]{43}", response.content.decode()))
    assert len(secrets) == 1
    return response, secrets.pop()


def test_a_token_is_made_with_the_limits_of_the_form(maker: Client) -> None:
    _, secret = made(maker)
    token = ApiToken.objects.bearing(secret)
    assert token is not None and token.expires_at is not None
    assert (token.name, token.scopes, token.prefix, token.queues) == (
        "ci", [SCOPES[0]], "report:", ["default", "reports"],
    )  # fmt: skip
    assert token.expires_at.year == 2099
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.via, entry.key) == (
        "olga",
        "create",
        "admin",
        str(token.pk),
    )
    assert secret not in str(AuditEntry.objects.values().get())


def test_the_secret_is_shown_once_and_kept_nowhere(maker: Client) -> None:
    response, secret = made(maker)
    assert "no-store" in response["Cache-Control"]
    assert not list(get_messages(response.wsgi_request))
    assert not [each for each in Session.objects.all() if secret in str(each.get_decoded())]
    again = maker.post(f"{LIST}add/", FORM)
    assert "There is already a token called ci." in again.content.decode()
    token = ApiToken.objects.get()
    for page in ("", f"{token.pk}/change/", f"{token.pk}/history/"):
        text = maker.get(f"{LIST}{page}").content.decode()
        assert "ci" in text
        assert secret not in text and token.token_hash not in text


def test_nobody_gives_a_scope_that_they_lack(maker: Client) -> None:
    page = maker.get(f"{LIST}add/").content.decode()
    assert re.findall(r'type="checkbox" name="scopes" value="([^"]+)"', page) == SCOPES
    refused = maker.post(f"{LIST}add/", FORM | {"scopes": "leasing_tasks.change_task"})
    assert "leasing_tasks.change_task is not one of the available choices" in (
        refused.content.decode()
    )
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prefix": "a\tb"}, "The prefix must not contain"),
        ({"queues": "x" * 201}, "200 characters"),
    ],
)
def test_the_form_says_what_is_wrong(maker: Client, wrong: dict[str, str], said: str) -> None:
    assert said in maker.post(f"{LIST}add/", FORM | wrong).content.decode()
    assert not ApiToken.objects.exists()


def test_a_viewer_makes_and_revokes_none(viewer: Client) -> None:
    token, _ = ApiToken.objects.issue("ci", scopes=SCOPES)
    assert viewer.get(f"{LIST}{token.pk}/change/").status_code == 200
    assert viewer.get(f"{LIST}add/").status_code == 403
    assert viewer.post(f"{LIST}add/", FORM | {"name": "x"}).status_code == 403
    act = {"action": "revoke", "_selected_action": token.pk, "confirmed": "yes"}
    assert viewer.post(LIST, act).status_code == 403
    assert viewer.post(f"{LIST}{token.pk}/change/", FORM).status_code == 403
    assert ApiToken.objects.usable().get().name == "ci"


def test_the_list_is_filtered_by_state(maker: Client) -> None:
    ApiToken.objects.issue("ci", scopes=SCOPES)
    ApiToken.objects.issue("old", scopes=SCOPES)
    ApiToken.objects.filter(name="old").revoke()
    shown = {
        state: re.findall(r">(ci|old)</a>", maker.get(f"{LIST}?state={state}").content.decode())
        for state in ("usable", "expired", "revoked")
    }
    assert shown == {"usable": ["ci"], "expired": [], "revoked": ["old"]}
