"""The demo site's settings: private by default, and demanding when it is opened to others."""

from __future__ import annotations

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from project.secret import kept_key
from tests.plugin import ROOT

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def read_settings(monkeypatch: pytest.MonkeyPatch, **env: str) -> dict[str, Any]:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(ROOT / "project" / "settings.py"))


@pytest.mark.parametrize("path", ["/ops/login/", "/admin/login/", "/nothing/is/here"])
@pytest.mark.django_db
def test_every_page_carries_the_content_security_policy(client: Client, path: str) -> None:
    assert client.get(path).headers["Content-Security-Policy"] == POLICY


def test_a_site_open_to_others_demands_a_secret_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImproperlyConfigured, match="SECRET_KEY"):
        read_settings(monkeypatch, SECRET_KEY="", ALLOWED_HOSTS="leases.example.org")


def test_a_site_open_to_others_sends_its_cookies_over_https_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = read_settings(monkeypatch, ALLOWED_HOSTS="leases.example.org")

    assert settings["SESSION_COOKIE_SECURE"]
    assert settings["CSRF_COOKIE_SECURE"]
    assert not settings["DEBUG"]


def test_sqlite_is_made_to_wait_for_other_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(monkeypatch, DATABASE_URL="sqlite:////var/lib/site/db.sqlite3")

    database = settings["DATABASES"]["default"]
    assert database["NAME"] == "/var/lib/site/db.sqlite3"
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


def test_postgresql_may_be_reached_through_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://postgres@/jobs?host=/run/postgresql"

    database = read_settings(monkeypatch, DATABASE_URL=url)["DATABASES"]["default"]

    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert database["NAME"] == "jobs"
    assert database["OPTIONS"] == {"host": "/run/postgresql"}


@pytest.mark.parametrize(("given", "expected"), [("", None), ("2.5", 2.5)])
def test_the_ttl_of_leases_can_be_set(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: float | None
) -> None:
    assert read_settings(monkeypatch, LEASING_TTL=given)["LEASING"].get("TTL") == expected


def test_a_kept_key_is_its_owners_only(tmp_path: Path) -> None:
    file = tmp_path / ".secret_key"

    key = kept_key(file)

    assert len(key) >= 50
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_processes_that_start_together_keep_one_key(tmp_path: Path) -> None:
    start = Barrier(8)

    def begin(_: int) -> str:
        start.wait()
        return kept_key(tmp_path / ".secret_key")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(begin, range(8)))) == 1


def test_a_key_that_cannot_be_kept_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match="SECRET_KEY"):
        kept_key(tmp_path / "missing" / ".secret_key")


@pytest.mark.django_db
def test_the_home_page_leads_to_the_pages_the_admin_and_the_api(client: Client) -> None:
    page = client.get("/").content.decode()

    for address in ("/ops/", "/admin/", "/api/leases", "/ops/login/"):
        assert f'href="{address}"' in page
