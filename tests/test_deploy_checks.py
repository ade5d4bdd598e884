"""``check --deploy`` says what is unsafe in the settings of a production, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, run_checks
from django.db import connection, connections

from leasing.checks import api, deploy, stores
from leasing.models import ApiToken
from tasks.checks import deploy as task_checks
from tests.plugin import ENVIRONMENT, ROOT

POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "HOST": "db.example.org"}
PATIENT = POSTGRESQL | {"OPTIONS": {"connect_timeout": 5}}


def ids(messages: Iterable[CheckMessage]) -> list[str | None]:
    found = list(messages)
    assert all(message.hint for message in found)
    return [message.id for message in found]


# Strangers


@pytest.mark.parametrize(
    ("networks", "names", "expected"),
    [
        (("127.0.0.0/8", "::1/128", "10.0.0.0/8", "fd00::/8"), ["a.example"], []),
        (("0.0.0.0/0",), ["a.example"], ["leasing.E101"]),
        (("10.0.0.0/8", "::/0"), ["a.example"], ["leasing.E101"]),
        (("8.8.0.0/16", "no network"), ["a.example"], ["leasing.E101"]),
        (("127.0.0.0/8",), ["*"], ["leasing.E102"]),
    ],
)
def test_an_api_that_strangers_can_use_is_an_error(
    networks: tuple[str, ...], names: list[str], expected: list[str], settings: Any
) -> None:
    settings.ALLOWED_HOSTS = names
    settings.LEASING = {"API_ACCESS": "compatible", "API_COMPATIBLE_HOSTS": networks}

    assert ids(deploy.check_strangers()) == expected


def test_a_closed_api_may_name_any_networks(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    settings.LEASING = {"API_ACCESS": "closed", "API_COMPATIBLE_HOSTS": ("0.0.0.0/0",)}

    assert ids(deploy.check_strangers()) == []


@pytest.mark.parametrize(
    ("token", "expected"), [(None, []), ("0123456789abcdef" * 2, []), ("prom", ["leasing.W108"])]
)
def test_a_token_that_can_be_guessed_is_warned_of(
    token: str | None, expected: list[str], settings: Any
) -> None:
    settings.LEASING = {"METRICS_TOKEN": token}

    assert ids(deploy.check_metrics()) == expected


@pytest.mark.parametrize(
    ("access", "proxies", "expected"),
    [
        ("compatible", ("10.0.0.5", "unix:", "10.0.1.0/24", "fd00::1"), []),
        ("compatible", ("10.0.0.0/8",), ["leasing.W109"]),
        ("compatible", ("10.0.0.5", "::/0"), ["leasing.W109"]),
        ("compatible", ("no network",), []),
        ("compatible", (), []),
        ("closed", ("10.0.0.0/8",), []),
    ],
)
def test_a_crowd_that_is_trusted_as_a_proxy_is_warned_of(
    access: str, proxies: tuple[str, ...], expected: list[str], settings: Any
) -> None:
    settings.LEASING = {"API_ACCESS": access, "API_TRUSTED_PROXIES": proxies}

    assert ids(api.check_proxies()) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"CSRF_COOKIE_SECURE": True}, ["leasing.W110"]),
        ({"CSRF_COOKIE_SECURE": False}, []),
        ({"SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https")}, []),
        ({"CSRF_TRUSTED_ORIGINS": ["https://a.example"]}, []),
    ],
)
def test_sessions_behind_a_proxy_with_tls_need_to_know_of_it(
    given: dict[str, Any], expected: list[str], settings: Any
) -> None:
    settings.LEASING = {"API_TRUSTED_PROXIES": ("10.0.0.5",)}
    for name, value in {"CSRF_COOKIE_SECURE": True, **given}.items():
        setattr(settings, name, value)

    assert ids(api.check_proxies()) == expected


@pytest.mark.django_db
def test_tokens_that_never_expire_are_warned_of() -> None:
    soon = datetime(2099, 1, 1, tzinfo=UTC)
    ApiToken.objects.issue("ends", scopes=["leasing.view_lease"], expires_at=soon)
    assert ids(api.check_tokens(databases=["default"])) == []
    for number in range(6):
        ApiToken.objects.issue(f"ci-{number}", scopes=["leasing.view_lease"])
    (warning,) = api.check_tokens(databases=["default"])
    assert warning.id == "leasing.W111"
    assert warning.msg.endswith("ci-5, ci-4, ci-3, ci-2, ci-1 and others.")
    assert ids(api.check_tokens()) == []
    ApiToken.objects.revoke()
    assert ids(api.check_tokens(databases=["default"])) == []


# Times


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"TTL": 5}, []),
        ({"TTL": 4.9}, ["leasing.W101"]),
        ({"TTL": "soon"}, []),  # leasing.E002
        ({"MARGIN": 0}, ["leasing.W102"]),
        ({"MARGIN": None}, []),
        ({"MARGIN": 0.1}, []),
    ],
)
def test_times_that_leave_no_room_are_warned_of(
    given: dict[str, Any], expected: list[str], settings: Any
) -> None:
    settings.LEASING = given

    assert ids(deploy.check_times()) == expected


def test_leases_in_memory_are_warned_of(settings: Any) -> None:
    settings.LEASING = {"ENABLED": False}

    assert ids(deploy.check_enabled()) == ["leasing.W007"]


# Connections


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        ({"ENGINE": "django.db.backends.sqlite3"}, ["leasing.W103"]),
        (PATIENT, []),
        (POSTGRESQL, ["leasing.W104"]),
        (POSTGRESQL | {"OPTIONS": {"connect_timeout": 0}}, ["leasing.W104"]),
        (POSTGRESQL | {"OPTIONS": {"connect_timeout": "60"}}, ["leasing.W104"]),
        ({"ENGINE": "django.db.backends.postgresql", "HOST": ""}, []),
        (POSTGRESQL | {"HOST": "/run/postgresql"}, []),
        ({"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"host": "/run"}}, []),
        ({"ENGINE": "django.db.backends.mysql"}, []),
    ],
)
def test_connections_that_lose_leases_are_warned_of(
    database: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.LEASING = {}
    monkeypatch.setitem(connections.settings, "default", database)

    assert ids(deploy.check_connections()) == expected


# The server


def asked() -> list[str | None]:
    return ids(deploy.check_server(databases=["default"]))


@pytest.mark.django_db
def test_the_server_is_asked_only_where_the_checks_may() -> None:
    assert deploy.check_server() == []
    assert deploy.check_server(databases=["archive"]) == []


@pytest.mark.django_db
def test_a_server_set_up_as_usual_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "notifications_arrive", lambda using: True)

    assert asked() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("on", "read committed", "on"), "leasing.E103"),
        (("off", "serializable", "on"), "leasing.W105"),
        (("off", "read committed", "off"), "leasing.W106"),
    ],
)
def test_a_server_set_up_to_lose_is_told_of(
    answer: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cursor:
        def execute(self, sql: str) -> None: ...
        def fetchone(self) -> tuple[str, ...]:
            return answer

    @contextmanager
    def cursor() -> Any:
        yield Cursor()

    monkeypatch.setitem(vars(connections["default"]), "cursor", cursor)

    assert ids(deploy._check_role("default")) == [expected]


@pytest.mark.django_db
def test_the_settings_of_the_session_are_what_is_read() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's settings")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_isolation = 'serializable'")
        cursor.execute("SET LOCAL transaction_read_only = on")

    assert ids(deploy._check_role("default")) == ["leasing.E103", "leasing.W105"]


@pytest.mark.parametrize(
    ("database", "arrive", "url", "expected"),
    [
        (PATIENT, True, None, []),
        (PATIENT, False, None, ["leasing.W107"]),
        (PATIENT, False, "postgresql://db.example.org/app", []),
        (PATIENT | {"DISABLE_SERVER_SIDE_CURSORS": True}, False, None, []),
        (
            POSTGRESQL | {"DISABLE_SERVER_SIDE_CURSORS": True, "OPTIONS": {"prepare_threshold": 5}},
            False,
            None,
            ["leasing.W107"],
        ),
    ],
)
def test_state_on_a_pooler_is_warned_of(
    database: dict[str, Any],
    arrive: bool,
    url: str | None,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> None:
    settings.LEASING = {"LISTEN_URL": url}
    monkeypatch.setitem(connections.settings, "default", database)
    monkeypatch.setattr(deploy, "notifications_arrive", lambda using: arrive)

    assert ids(deploy._check_pooler("default")) == expected


# Tasks


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"PRUNE_EVERY": None}, ["leasing_tasks.W101"]),
        ({"RETENTION": {"succeeded": None}}, ["leasing_tasks.W102"]),
        ({"RETENTION": {"cancelled": None}}, ["leasing_tasks.W102"]),
        ({"RETENTION": {"failed": None}}, []),
        ({"RETENTION": 3}, []),  # leasing_tasks.E010
        ({"SAMPLE_RETENTION": None}, ["leasing_tasks.W102"]),
        ({"SAMPLE_RETENTION": None, "SAMPLES": False}, []),
        ({"OUTBOX_RETENTION": None}, ["leasing_tasks.W102"]),
    ],
)
def test_tables_that_grow_for_ever_are_warned_of(
    given: dict[str, Any], expected: list[str], settings: Any
) -> None:
    settings.TASK_QUEUE = given

    assert ids(task_checks.check_growth()) == expected


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("redis://broker/0", {}, []),
        ("amqp://broker//", {"confirm_publish": True}, []),
        ("amqp://broker//", {"confirm_publish": False}, ["leasing_tasks.W104"]),
        ("filesystem://localhost", {}, ["leasing_tasks.W103"]),
        ("memory://", {}, ["leasing_tasks.W103"]),
    ],
)
def test_a_broker_that_loses_messages_is_warned_of(
    url: str, options: dict[str, Any], expected: list[str], settings: Any, monkeypatch: Any
) -> None:
    app = Celery("tests", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    monkeypatch.setattr(task_checks, "import_string", lambda path: app)
    settings.TASK_QUEUE = {"CELERY_APP": "shop.celery.app"}
    assert ids(task_checks.check_broker()) == []

    settings.TASK_QUEUE = {"CELERY_APP": "shop.celery.app", "CELERY_QUEUES": ["default"]}

    assert ids(task_checks.check_broker()) == expected


def test_an_application_that_is_not_there_is_an_error(settings: Any) -> None:
    settings.TASK_QUEUE = {"CELERY_APP": "nothing.here", "CELERY_QUEUES": ["default"]}

    assert ids(task_checks.check_broker()) == ["leasing_tasks.E101"]


# All together


def test_the_checks_are_for_deployments_only(settings: Any) -> None:
    settings.LEASING = {"TTL": 2}
    settings.TASK_QUEUE = {"PRUNE_EVERY": None}
    mine = {"leasing.W101", "leasing_tasks.W101"}

    assert not mine & {message.id for message in run_checks()}
    assert mine <= {m.id for m in run_checks(include_deployment_checks=True)}


def test_the_demo_is_fit_for_production() -> None:
    production = {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "SECRET_KEY": "a long one, for this test only, " + "".join(map(chr, range(48, 123))),
        "ALLOWED_HOSTS": "leases.example.org",
        "DATABASE_URL": "postgresql://app:secret@db.example.org/app",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | production,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert django_settings.SILENCED_SYSTEM_CHECKS == ["security.W004", "security.W008"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://leases.example.com/api", ["leasing.W112"]),
        ("http://10.0.0.5:8000/api", ["leasing.W112"]),
        ("http://127.0.0.2:8000/api", []),
        ("http://[::1]/api", []),
        ("http://localhost/api", []),
        ("https://leases.example.com/api", []),
    ],
)
def test_a_token_that_is_sent_unencrypted_is_warned_of(
    url: str, expected: list[str], settings: Any
) -> None:
    settings.LEASING = {"STORES": {"central": {"URL": url, "TOKEN": "secret"}}}
    assert ids(stores.check_addresses()) == expected

    settings.LEASING = {"STORES": {"central": {"URL": url}, "default": None}}
    assert ids(stores.check_addresses()) == []
