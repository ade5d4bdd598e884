"""Access to the API: ``tests/test_permissions.py`` has every verb with every kind of client."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.backends import AllowAllUsersModelBackend
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from leasing.models import Lease
from tests.api_calls import call

pytestmark = pytest.mark.django_db

TERM = {"resource": "crane:1", "holder": "me"}


@pytest.fixture
def user() -> User:
    return User.objects.create_user("alice")


@pytest.fixture
def alice(user: User) -> Client:
    """A browser in which alice is signed in, and which is held to Django's CSRF token."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = "t" * 32
    return client


def allow(user: User, *names: str) -> None:
    for name in names:
        app, codename = name.split(".")
        wanted = Permission.objects.filter(content_type__app_label=app, codename=codename)
        user.user_permissions.add(wanted.get())


# Closed


class Lenient(AllowAllUsersModelBackend):
    """A site's own backend that lets everybody in, and lets them do everything."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        return True


def test_a_user_who_was_shut_out_is_refused_whatever_a_backend_thinks(
    client: Client, user: User, settings: Settings
) -> None:
    settings.AUTHENTICATION_BACKENDS = [f"{__name__}.Lenient"]
    client.force_login(user)
    assert call(client, "GET", "/leases").status == 200
    User.objects.update(is_active=False)
    assert call(client, "GET", "/leases").status == 403


# Compatible


@pytest.mark.usefixtures("compatible")
class TestCompatible:
    @pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
    def test_loopback_is_near(self, client: Client, address: str) -> None:
        assert call(client, "GET", "/leases", REMOTE_ADDR=address).status == 200

    @pytest.mark.parametrize(
        "address",
        ["10.0.0.1", "203.0.113.7", "::2", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost"],
    )
    def test_everything_else_is_far(self, client: Client, address: str) -> None:
        assert call(client, "GET", "/leases", REMOTE_ADDR=address).status == 403

    def test_the_site_says_what_is_near(self, client: Client, settings: Settings) -> None:
        settings.LEASING = {**settings.LEASING, "API_COMPATIBLE_HOSTS": ("10.0.0.0/8",)}
        assert call(client, "GET", "/leases", REMOTE_ADDR="10.1.2.3").status == 200
        assert call(client, "GET", "/leases", REMOTE_ADDR="127.0.0.1").status == 403

    @pytest.mark.parametrize(
        "header",
        [
            *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Server"),
            *("Forwarded", "X-Real-IP", "Via"),
        ],
    )
    def test_what_came_through_a_proxy_is_refused(self, client: Client, header: str) -> None:
        assert call(client, "GET", "/leases", headers={header: "127.0.0.1"}).status == 403

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": "http://testserver.evil.example"},
            {"Origin": "http://testserver:8001"},
            {"Origin": "http://testserver@evil.example"},
            {"Origin": "http://[testserver"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"},
        ],
    )
    def test_a_page_of_another_site_is_refused(
        self, client: Client, headers: dict[str, str]
    ) -> None:
        assert call(client, "POST", "/leases", TERM, headers=headers).status == 403
        assert not Lease.objects.exists()

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "http://testserver"},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
        ],
    )
    def test_a_page_of_this_site_is_served(self, client: Client, headers: dict[str, str]) -> None:
        assert call(client, "POST", "/leases", TERM, headers=headers).status == 201

    def test_a_foreign_name_for_this_machine_is_refused(self, client: Client) -> None:
        response = client.get("/api/leases", headers={"Host": "evil.example"})
        assert response.status_code == 400

    def test_a_user_who_is_signed_in_is_judged_as_ever(self, alice: Client, user: User) -> None:
        assert call(alice, "GET", "/leases").status == 403
        allow(user, "leasing.view_lease", "leasing.change_lease")
        assert call(Client(), "GET", "/leases").status == 200
        user.refresh_from_db()
        assert call(alice, "GET", "/leases", REMOTE_ADDR="203.0.113.7").status == 200
        assert call(alice, "POST", "/leases", TERM).status == 403


@pytest.mark.parametrize("path", ["/leases", "/tasks/next", "/no/such/address"])
def test_an_unknown_host_is_refused_in_json(client: Client, path: str) -> None:
    answer = call(client, "GET", path, HTTP_HOST="evil.example")
    assert (answer.status, set(answer.body)) == (400, {"error"})
    assert "evil" not in answer.body["error"]


@pytest.mark.parametrize("url", ["/ops/tasks/", "/no/such/address"])
def test_an_unknown_host_of_a_page_is_djangos_business(client: Client, url: str) -> None:
    response = client.get(url, HTTP_HOST="evil.example")
    assert (response.status_code, response["Content-Type"]) == (400, "text/html; charset=utf-8")
