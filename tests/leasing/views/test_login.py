"""The page to sign in: for operators who are not staff, whom the admin's turns away."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import include, path
from pytest_django import Settings

from tests.pages import get, user_with

pytestmark = pytest.mark.django_db

PAGE = "/ops/login/"


@pytest.fixture(autouse=True)
def _site(settings: Settings) -> None:
    """A project that has our pages and the admin, and no templates."""
    (engine,) = settings.TEMPLATES
    options = engine["OPTIONS"]
    settings.TEMPLATES = [{**engine, "DIRS": [], "OPTIONS": dict(options)}]
    settings.ROOT_URLCONF = (
        path("admin/", admin.site.urls),
        path("ops/", include("leasing.urls")),
        path("ops/", include("tasks.urls")),
    )
    settings.LOGIN_URL = "leasing:login"


@pytest.fixture
def vera() -> None:
    user_with("leasing.view_lease", name="vera")


def sign_in(client: Client, path: str = PAGE, **data: str) -> str:
    response = client.post(path, {"username": "vera", "password": "x", **data})
    assert response.status_code == 302, response.content.decode()
    return str(response["Location"])


def test_an_operator_who_is_not_staff_signs_in_and_comes_back(client: Client, vera: None) -> None:
    sent = client.get("/ops/leases/?state=active")["Location"]
    assert sent == f"{PAGE}?next=/ops/leases/%3Fstate%3Dactive"
    page = get(client, sent)

    back = sign_in(client, sent, next=page.hidden["next"])

    assert back == "/ops/leases/?state=active"
    assert client.get(back).status_code == 200


def test_without_an_address_one_comes_to_the_first_page_of_the_menu(
    client: Client, vera: None
) -> None:
    assert sign_in(client) == "/ops/leases/"


def test_who_may_open_nothing_is_told_what_is_missing(client: Client) -> None:
    user_with(name="vera")

    page = get(client, sign_in(client))

    assert page.status == 403
    assert page.one("main code").text == "leasing.view_lease"


def test_a_wrong_password_is_an_alert(client: Client, vera: None) -> None:
    page_with = client.post(PAGE, {"username": "vera", "password": "y"})

    assert page_with.status_code == 200
    assert b'role="alert"' in page_with.content


def test_an_operator_who_is_not_staff_signs_out(client: Client, vera: None) -> None:
    sign_in(client)
    (form,) = [each for each in get(client, "/ops/leases/").forms if "logout" in each]

    response = client.post(form)

    assert response["Location"] == PAGE
    assert "Location" in client.get("/ops/leases/").headers


def test_a_foreign_address_is_not_followed(client: Client, vera: None) -> None:
    assert sign_in(client, next="https://evil.example/") == "/ops/leases/"


def test_a_site_that_signs_in_elsewhere_has_no_second_door(
    client: Client, vera: None, settings: Settings
) -> None:
    settings.LOGIN_URL = "/id/login/?by=key"

    assert client.get(PAGE)["Location"] == "/id/login/?by=key"
    assert sign_in(client) == "/id/login/?by=key"
    assert "_auth_user_id" not in client.session
