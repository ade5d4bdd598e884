"""Who opens a page can sign in, or a check says what to set."""

from __future__ import annotations

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.core.checks import run_checks
from django.http import HttpResponse
from django.urls import URLPattern, URLResolver, include, path
from pytest_django import Settings

from leasing.checks.login import check_login_url

OPS = path("ops/", include("leasing.urls"))
ADMIN = path("admin/", admin.site.urls)
SIGN_IN = path("sign-in/", lambda request: HttpResponse(), name="sign-in")


def hints(
    settings: Settings, login_url: str, *patterns: URLPattern | URLResolver
) -> list[str | None]:
    """Return the hints about a site with these ``patterns``."""
    settings.ROOT_URLCONF = tuple(patterns)
    settings.LOGIN_URL = login_url
    return [each.hint for each in check_login_url() if each.id == "leasing.W009"]


def turned_away(
    settings: Settings, login_url: str, *patterns: URLPattern | URLResolver
) -> list[str | None]:
    """Return the hints that a site with these ``patterns`` signs in only those who are staff."""
    settings.ROOT_URLCONF = tuple(patterns)
    settings.LOGIN_URL = login_url
    return [each.hint for each in check_login_url() if each.id == "leasing.W010"]


def test_djangos_default_is_warned_of_with_what_to_set(settings: Settings) -> None:
    (hint,) = hints(settings, "/accounts/login/", OPS, ADMIN)

    assert str(hint).startswith('Set LOGIN_URL = "leasing:login", or name a page of your own.')


@pytest.mark.parametrize("login_url", ["/accounts/login/", "leasing:login", "login"])
def test_a_site_without_the_pages_of_leases_is_told_what_that_needs(
    settings: Settings, login_url: str
) -> None:
    (hint,) = hints(settings, login_url, path("", include("tasks.urls")))

    assert 'which needs path("ops/", include("leasing.urls"))' in str(hint)


@pytest.mark.parametrize("login_url", ["admin:login", "/admin/login/"])
def test_the_login_of_the_admin_is_warned_of_as_it_turns_operators_away(
    settings: Settings, login_url: str
) -> None:
    (hint,) = turned_away(settings, login_url, OPS, ADMIN)

    assert str(hint).startswith('Set LOGIN_URL = "leasing:login".')


@pytest.mark.parametrize("login_url", ["leasing:login", "sign-in", "https://id.example/login"])
def test_a_login_that_turns_nobody_away_is_fine(settings: Settings, login_url: str) -> None:
    assert turned_away(settings, login_url, OPS, ADMIN, SIGN_IN) == []
    assert turned_away(settings, "admin:login", ADMIN) == []  # without our pages


@pytest.mark.parametrize(
    "login_url",
    [
        "leasing:login",
        "/ops/login/",
        "admin:login",
        "sign-in",
        "/sign-in/",
        "/sign-in",
        "/sign-in/?by=mail",
    ],
)
def test_a_page_of_the_site_is_fine(settings: Settings, login_url: str) -> None:
    assert hints(settings, login_url, OPS, ADMIN, SIGN_IN) == []


@pytest.mark.parametrize("login_url", ["https://id.example/login", "//id.example/login", "../in/"])
def test_a_page_elsewhere_is_not_judged(settings: Settings, login_url: str) -> None:
    assert hints(settings, login_url, OPS) == []


def test_an_address_that_begins_with_a_language_is_found(settings: Settings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]

    assert hints(settings, "/de/sign-in/", OPS, *i18n_patterns(SIGN_IN)) == []


def test_a_site_without_our_pages_needs_none(settings: Settings) -> None:
    assert hints(settings, "/accounts/login/", ADMIN) == []
    settings.ROOT_URLCONF = None
    assert list(check_login_url()) == []


def test_the_pages_of_tasks_alone_need_one_too(settings: Settings) -> None:
    assert len(hints(settings, "/accounts/login/", path("", include("tasks.urls")))) == 1


def test_the_check_is_registered(settings: Settings) -> None:
    settings.LOGIN_URL = "/accounts/login/"

    assert "leasing.W009" in [each.id for each in run_checks(tags=["urls"])]
