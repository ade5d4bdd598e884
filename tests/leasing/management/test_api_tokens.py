"""The command ``api_tokens``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from leasing.functions import database_now
from leasing.models import ApiToken, AuditEntry

pytestmark = pytest.mark.django_db

CREATE = ("create", "ci", "--scope", "leasing.view_lease", "--scope", "leasing.change_lease")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call_command("api_tokens", *arguments)
    return capsys.readouterr().out


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_it_creates_a_token_and_prints_the_secret(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, *CREATE, "--by", "olga", "--reason", "for CI").splitlines()
    token = ApiToken.objects.bearing(lines[-1])
    assert token is not None and token.expires_at is not None
    assert token.scopes == ["leasing.change_lease", "leasing.view_lease"]
    left = token.expires_at - database_now("default")
    assert timedelta(days=364) < left <= timedelta(days=365)
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.via, entry.key, entry.reason) == (
        "olga", "create", "command", str(token.pk), "for CI",
    )  # fmt: skip


def test_a_token_has_the_limits_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--prefix", "report:", "--queue", "b", "--queue", "a")
    made = facts(capsys, *CREATE, *limits, "--never-expires")
    token = ApiToken.objects.bearing(made.pop("secret"))
    assert token is not None
    assert (token.prefix, token.queues) == ("report:", ["a", "b"])
    assert (made["prefix"], made["queues"]) == ("report:", ["a", "b"])
    assert made["expires_at"] is None
    assert made["state"] == "usable"


def test_a_name_is_not_given_twice() -> None:
    call_command("api_tokens", *CREATE)
    with pytest.raises(CommandError, match="There is already a token called ci\\."):
        call_command("api_tokens", *CREATE)
    assert AuditEntry.objects.count() == 1


def test_it_lists_tokens_without_what_proves_them(capsys: pytest.CaptureFixture[str]) -> None:
    secrets = [facts(capsys, "create", name, *CREATE[2:])["secret"] for name in ("a", "b")]
    ApiToken.objects.filter(name="a").revoke()
    listed = facts(capsys, "list")
    assert [(each["name"], each["state"]) for each in listed] == [("b", "usable"), ("a", "revoked")]
    assert [each["name"] for each in facts(capsys, "list", "--state", "usable")] == ["b"]
    shown = printed(capsys, "list") + str(listed)
    hidden = [*secrets, *ApiToken.objects.values_list("token_hash", flat=True)]
    assert not [each for each in hidden if each in shown]


def test_it_lists_the_scopes_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    listed = facts(capsys, "scopes")
    assert {"leasing.change_lease", "leasing_tasks.view_payload"} <= set(listed)
    assert listed == sorted(listed)
