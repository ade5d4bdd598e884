"""The page of leases that other stores keep than the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import Client, override_settings
from django.urls import reverse

from leasing.exceptions import StoreError
from leasing.stores import stores
from leasing.stores.memory import MemoryStore
from leasing.stores.rows import RowStore
from leasing.validation.terms import Terms
from leasing.views.stores import SHOWN

pytestmark = pytest.mark.django_db


class AwayStore(MemoryStore):
    """Its server is away."""

    def held(self) -> Any:
        raise StoreError("The shelf at 10.0.0.7 does not answer.")


class SilentStore(MemoryStore):
    """Lists nothing."""

    held = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "the shelf in the hall"


class ShardStore(RowStore):
    """Its leases are rows."""


def entry(kind: type[Any]) -> dict[str, str]:
    return {"BACKEND": f"{kind.__module__}.{kind.__qualname__}"}


@pytest.fixture(autouse=True)
def named() -> Iterator[None]:
    entries = {
        "rows": entry(ShardStore),
        "a&b": entry(MemoryStore),
        "away": entry(AwayStore),
        "silent": entry(SilentStore),
        "broken": {"BACKEND": "nowhere.Store"},
    }
    with override_settings(LEASING={"STORES": entries}):
        yield


def acquire(*names: str) -> None:
    for name in names:
        stores["a&b"].acquire(name, Terms.check(holder="<b>me", ttl=60))


def page(client: Client, **asked: str) -> str:
    answer = client.get(reverse("leasing:stores"), asked)
    assert answer.status_code == 200
    return answer.content.decode()


def test_who_holds_what_is_listed_by_name(admin_client: Client) -> None:
    acquire("ship", "crane")

    shown = page(admin_client, store="a&b")

    assert "Held in <bdi>a&amp;b</bdi>" in shown
    assert 0 < shown.index("crane") < shown.index("ship")
    assert shown.count("&lt;b&gt;me") == 2
    token = stores["a&b"].current("crane").fencing_token  # type: ignore[union-attr]
    assert str(token) in shown


def test_the_first_of_the_other_stores_is_shown_unless_one_is_chosen(admin_client: Client) -> None:
    acquire("crane")
    assert "Held in <bdi>a&amp;b</bdi>" in page(admin_client)
    leases = admin_client.get(reverse("leasing:list")).content.decode()
    for alias in ("a%26b", "away", "silent", "broken"):
        assert f"{reverse('leasing:stores')}?store={alias}" in leases
        assert f"{reverse('leasing:stores')}?store={alias}" in page(admin_client)
    for rows in ("default", "rows"):
        assert f"?store={rows}" not in leases


def test_names_are_searched_by_their_beginning(admin_client: Client) -> None:
    acquire("crane:1", "crane:2", "a crane")
    shown = page(admin_client, store="a&b", q="crane:")
    assert [name in shown for name in ("crane:<wbr>1", "crane:<wbr>2", "a crane")] == [
        *(True, True, False)
    ]
    assert "No lease that is held starts with" in page(admin_client, store="a&b", q="ship")


def test_of_many_the_first_are_shown_and_the_others_counted(admin_client: Client) -> None:
    acquire(*(f"crane:{number:04}" for number in range(SHOWN + 2)))
    shown = page(admin_client, store="a&b")
    assert shown.count('class="name"') == SHOWN
    assert "2 more leases" in shown


@pytest.mark.parametrize(
    ("alias", "sentence"),
    [
        ("away", "The shelf at 10.0.0.7 does not answer."),
        ("silent", "the shelf in the hall does not list its leases."),
        ("broken", "cannot be imported"),
        ("awayy", "Did you mean"),
    ],
)
def test_what_cannot_be_listed_is_said_in_a_sentence(
    admin_client: Client, alias: str, sentence: str
) -> None:
    assert sentence in page(admin_client, store=alias)


def test_without_other_stores_the_page_says_so_and_nothing_leads_there(
    admin_client: Client,
) -> None:
    with override_settings(LEASING={"STORES": {"rows": entry(ShardStore)}}):
        assert "names no other store" in page(admin_client)
        for place in ("leasing:list", "admin:leasing_lease_changelist"):
            shown = admin_client.get(reverse(place)).content.decode()
            assert reverse("leasing:stores") not in shown


def test_settings_that_are_none_break_no_page(admin_client: Client) -> None:
    with override_settings(LEASING={"STORES": ["redis"]}):
        assert admin_client.get(reverse("leasing:list")).status_code == 200


def test_the_admin_leads_there(admin_client: Client) -> None:
    shown = admin_client.get(reverse("admin:leasing_lease_changelist")).content.decode()
    assert f'href="{reverse("leasing:stores")}"' in shown


def test_it_takes_the_permission_to_see_leases(client: Client) -> None:
    user = User.objects.create_user("olga", password="x")
    client.force_login(user)
    assert client.get(reverse("leasing:stores")).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_lease"))
    assert client.get(reverse("leasing:stores")).status_code == 200


def test_a_poll_gets_the_page_again_once_something_changed(admin_client: Client) -> None:
    address = f"{reverse('leasing:stores')}?store=a%26b"
    first = admin_client.get(address, headers={"X-Live": "1"})
    known = {"X-Live": "1", "If-None-Match": first["ETag"]}
    assert admin_client.get(address, headers=known).status_code == 304
    acquire("crane")
    cache.clear()  # polls share what was read a moment ago
    assert admin_client.get(address, headers=known).status_code == 200
