"""Proxies in front of the API, and what clients pretend of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from leasing.models import ApiToken
from tests.api_calls import call

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

PROXY = "10.0.0.3"


@pytest.fixture(autouse=True)
def _networks(settings: Settings) -> None:
    settings.LEASING = {
        **settings.LEASING,
        "API_COMPATIBLE_HOSTS": ("127.0.0.0/8", "192.168.0.0/16"),
        "API_TRUSTED_PROXIES": (PROXY, "10.0.0.2", "2001:db8::/64"),
    }


def asked(peer: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(Client(), "GET", "/leases", REMOTE_ADDR=peer, headers=named).status


@pytest.mark.parametrize(
    ("forwarded_for", "status"),
    [
        ("192.168.1.7", 200),
        ("127.0.0.1", 200),  # this machine itself called the proxy
        (" 192.168.1.7 ", 200),
        ("::ffff:192.168.1.7", 200),
        ("192.168.1.7, 10.0.0.2", 200),  # over two proxies
        ("203.0.113.7, 192.168.1.7", 200),  # what is further left is claimed, and not read
        ("203.0.113.7", 403),
        ("127.0.0.1, 203.0.113.7", 403),
        ("192.168.1.7, 203.0.113.7, 10.0.0.2", 403),
        ("127.0.0.1,,", 403),
        ("192.168.1.7:4711", 403),
        ("unknown", 403),
        ("", 403),
        ("10.0.0.2", 403),  # a proxy calls on its own
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_client(
    forwarded_for: str, status: int
) -> None:
    assert asked(PROXY, X_Forwarded_For=forwarded_for) == status


def test_a_trusted_proxy_that_names_nobody_is_not_believed() -> None:
    assert asked(PROXY) == 403


def test_other_headers_of_a_trusted_proxy_are_not_read() -> None:
    claims = {"Forwarded": "for=127.0.0.1", "X_Real_IP": "127.0.0.1", "Via": "1.1 near"}
    assert asked(PROXY, X_Forwarded_For="203.0.113.7", **claims) == 403
    assert asked(PROXY, X_Forwarded_For="192.168.1.7", **claims) == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "192.168.1.7", "10.0.0.4", "2001:db8:0:1::1", ""])
def test_nobody_else_is_believed(peer: str) -> None:
    assert asked(peer, X_Forwarded_For="127.0.0.1") == 403


def test_proxies_may_be_named_by_network() -> None:
    assert asked("2001:db8::5", X_Forwarded_For="192.168.1.7") == 200


def test_a_socket_is_a_proxy_where_the_site_says_so(settings: Settings) -> None:
    assert asked("", X_Forwarded_For="192.168.1.7") == 403
    settings.LEASING = {**settings.LEASING, "API_TRUSTED_PROXIES": ("unix:",)}
    assert asked("", X_Forwarded_For="192.168.1.7") == 200
    assert asked("", X_Forwarded_For="203.0.113.7") == 403
    assert asked("") == 403


def test_no_proxy_is_trusted_unless_a_setting_names_it(settings: Settings) -> None:
    settings.LEASING = {"API_ACCESS": "compatible"}
    assert asked("127.0.0.1", X_Forwarded_For="127.0.0.1") == 403
    assert asked("127.0.0.1") == 200


@pytest.mark.parametrize("access", ["closed", "compatible"])
@pytest.mark.parametrize("peer", [PROXY, "203.0.113.9"])
def test_credentials_are_accepted_through_every_proxy(
    access: str, peer: str, admin_user: User, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": access}
    secret = ApiToken.objects.issue("ci", scopes=["leasing.view_lease"])[1]
    via: dict[str, Any] = {"REMOTE_ADDR": peer}
    forwarded = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    headers = forwarded | {"Authorization": f"Bearer {secret}"}
    assert call(Client(), "GET", "/leases", headers=headers, **via).status == 200
    browser = Client()
    browser.force_login(admin_user)
    assert call(browser, "GET", "/leases", headers=forwarded, **via).status == 200
    assert call(Client(), "GET", "/leases", headers=forwarded, **via).status in (401, 403)
