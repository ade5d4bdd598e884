"""Tokens of the API as rows: issued, found by their secret, revoked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.api.principals import Token
from leasing.functions import DbNow
from leasing.models import ApiToken, Lease
from leasing.testing.keeper import ManualKeeper
from tasks.models import Task
from tests.factories import make_lease, make_task

pytestmark = pytest.mark.django_db

SCOPE = "leasing.change_lease"


def issue(name: str = "ci", **more: Any) -> tuple[ApiToken, str]:
    return ApiToken.objects.issue(name, **{"scopes": [SCOPE]} | more)


def test_a_token_is_found_by_its_secret_which_is_stored_nowhere() -> None:
    token, secret = issue()
    issue("other")
    assert ApiToken.objects.bearing(secret) == token
    row = ApiToken.objects.filter(pk=token.pk).values().get()
    assert secret not in str(row) and secret.removeprefix("leasing_") not in str(row)
    assert token.token_hash not in str(ApiToken.objects.bearing(secret))


def test_secrets_have_256_random_bits() -> None:
    assert len({issue(f"t{n}")[1] for n in range(3)}) == 3
    assert len(issue()[1].removeprefix("leasing_")) == 43  # of six bits each


@pytest.mark.parametrize("of", ["", "x", "leasing_", "leasing_" + "a" * 43, "é" * 51, "a\0"])
def test_a_wrong_secret_finds_nothing(of: str) -> None:
    issue()
    assert ApiToken.objects.bearing(of) is None


def test_what_cannot_be_a_secret_is_not_looked_up() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert ApiToken.objects.bearing("x" * 10_000) is None
    assert not queries


def test_a_hash_is_no_secret() -> None:
    token, _ = issue()
    assert ApiToken.objects.bearing(token.token_hash) is None
    assert ApiToken.objects.bearing(f"leasing_{token.token_hash[:43]}") is None


def test_an_expired_token_is_not_found(clocks: ManualKeeper) -> None:
    token, secret = issue(expires_at=clocks.now + timedelta(seconds=60))
    clocks.advance(59)
    assert ApiToken.objects.bearing(secret) == ApiToken.objects.usable().get() == token
    clocks.advance(1)
    assert ApiToken.objects.bearing(secret) is None
    assert not ApiToken.objects.usable()


def test_a_revoked_token_is_not_found_and_keeps_the_moment() -> None:
    token, secret = issue()
    other, its = issue("other")
    assert ApiToken.objects.filter(pk=token.pk).revoke() == 1
    assert ApiToken.objects.bearing(secret) is None
    assert ApiToken.objects.bearing(its) == other
    token.refresh_from_db()
    revoked_at = token.revoked_at
    assert ApiToken.objects.filter(pk=token.pk).revoke() == 0
    token.refresh_from_db()
    assert token.revoked_at == revoked_at


def test_its_use_is_noted_about_once_a_minute(clocks: ManualKeeper) -> None:
    token, secret = issue()
    issue("other")

    def used() -> list[str]:
        """Use the token twice, and return the statements."""
        with CaptureQueriesContext(connection) as queries:
            for _ in range(2):
                ApiToken.objects.note_use(ApiToken.objects.bearing(secret))
        return [each["sql"].split()[0] for each in queries]

    assert used() == ["SELECT", "UPDATE", "SELECT"]
    clocks.advance(59)
    assert used() == ["SELECT", "SELECT"]
    clocks.advance(1)
    assert used() == ["SELECT", "UPDATE", "SELECT"]
    token.refresh_from_db()
    assert token.last_used_at == clocks.now
    assert ApiToken.objects.get(name="other").last_used_at is None


def test_a_use_that_another_process_has_noted_is_not_noted_again(clocks: ManualKeeper) -> None:
    token, secret = issue()
    read = ApiToken.objects.bearing(secret)
    noted = clocks.now
    ApiToken.objects.note_use(read)
    clocks.advance(1)
    ApiToken.objects.note_use(read)
    token.refresh_from_db()
    assert token.last_used_at == noted


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": " ci"}, "name"),
        ({"name": "a\0"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["leasing.chnge_lease"]}, "scopes"),
        ({"prefix": " a"}, "prefix"),
        ({"prefix": "a\n"}, "prefix"),
        ({"prefix": "x" * 201}, "prefix"),
        ({"queues": [""]}, "queues"),
        ({"queues": [7]}, "queues"),
    ],
)
def test_a_token_with_a_wrong_field_is_refused_and_not_stored(
    wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as refusal:
        issue(**wrong)
    assert set(refusal.value.message_dict) == {field}
    assert not ApiToken.objects.exists()


def test_two_tokens_have_two_names() -> None:
    issue()
    ApiToken.objects.revoke()
    with pytest.raises(ValidationError):
        issue()


def named(**limits: Any) -> Token:
    return Token(issue(**limits)[0])


def test_a_prefix_covers_names_to_the_letter() -> None:
    for name in ("report:1", "Report:1", "report", "other:report:", "report:%", "report:_"):
        make_lease(resource=name)
    seen = {
        prefix: sorted(
            named(name=prefix, prefix=prefix)
            .leases(Lease.objects.all())
            .values_list("resource", flat=True)
        )
        for prefix in ("report:", "report:%", "Re")
    }
    assert seen == {
        "report:": ["report:%", "report:1", "report:_"],
        "report:%": ["report:%"],
        "Re": ["Report:1"],
    }


def test_queues_cover_tasks_and_a_prefix_none(settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": ["default", "reports"]}
    kept = make_task(queue="reports")
    make_task()
    limited, prefixed = named(queues=["reports"]), named(name="p", prefix="report:")
    assert list(limited.tasks(Task.objects.all())) == [kept]
    assert list(limited.leases(Task.objects.all())) == [kept]
    assert list(limited.leases(Lease.objects.all())) == []
    assert prefixed.tasks(Task.objects.all()).count() == 2
    assert prefixed.leases(Task.objects.all()).count() == 0


def test_a_token_is_usable_expired_or_revoked() -> None:
    """A revoked token is revoked for good, whatever its end."""
    now: Any = ApiToken.objects.annotate(at=DbNow())
    past, ahead = timedelta(seconds=-1), timedelta(hours=1)
    for name, end in {
        "endless": None,
        "fresh": ahead,
        "late": past,
        "back": ahead,
        "both": past,
    }.items():
        issue(name)
        at = now.get(name=name).at
        ApiToken.objects.filter(name=name).update(expires_at=None if end is None else at + end)
    ApiToken.objects.filter(name__in=["back", "both"]).revoke()

    def named(rows: Any) -> set[str]:
        return set(rows.values_list("name", flat=True))

    assert named(ApiToken.objects.usable()) == {"endless", "fresh"}
    assert named(ApiToken.objects.expired()) == {"late"}
    assert named(ApiToken.objects.revoked()) == {"back", "both"}
