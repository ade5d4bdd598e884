"""``check --deploy`` says what is unsafe in the settings of a production, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, run_checks
from django.db import connection, connections

from leasing.checks import deploy, stores
from leasing.models import ApiToken
from tasks.checks import deploy as task_checks
from tests.plugin import ENVIRONMENT, ROOT

POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "HOST": "db.example.org"}
PATIENT = POSTGRESQL | {"OPTIONS": {"connect_timeout": 5}}


def ids(messages: Iterable[CheckMessage]) -> list[str | None]:
    found = list(messages)
    assert all(message.hint for message in found)
    return [message.id for message in found]


# What the settings alone tell


def api_of(access: str, name: str, *networks: str, hosts: str = "a.example") -> dict[str, Any]:
    return {"ALLOWED_HOSTS": [hosts], "LEASING": {"API_ACCESS": access, name: networks}}


def near(*networks: str, hosts: str = "a.example", access: str = "compatible") -> dict[str, Any]:
    return api_of(access, "API_COMPATIBLE_HOSTS", *networks, hosts=hosts)


def proxies(*networks: str, access: str = "compatible") -> dict[str, Any]:
    return api_of(access, "API_TRUSTED_PROXIES", *networks)


def behind_tls(**more: Any) -> dict[str, Any]:
    trusted = {"LEASING": {"API_TRUSTED_PROXIES": ("10.0.0.5",)}}
    return trusted | {"CSRF_COOKIE_SECURE": True} | more


def leasing(**given: Any) -> dict[str, Any]:
    return {"LEASING": given}


def queue(**given: Any) -> dict[str, Any]:
    return {"TASK_QUEUE": given}


def central(url: str, **more: str) -> dict[str, Any]:
    return leasing(STORES={"central": {"URL": url, **more}, "default": None})


SECRET = {"TOKEN": "secret"}
Row = tuple[Callable[..., Iterable[CheckMessage]], dict[str, Any], str]
#: A check, settings, and the id of what it finds in them.
ROWS: list[Row] = [
    (deploy.check_strangers, near("127.0.0.0/8", "::1/128", "10.0.0.0/8", "fd00::/8"), ""),
    (deploy.check_strangers, near("0.0.0.0/0"), "leasing.E101"),
    (deploy.check_strangers, near("10.0.0.0/8", "::/0"), "leasing.E101"),
    (deploy.check_strangers, near("8.8.0.0/16", "no network"), "leasing.E101"),
    (deploy.check_strangers, near("127.0.0.0/8", hosts="*"), "leasing.E102"),
    (deploy.check_strangers, near("0.0.0.0/0", hosts="*", access="closed"), ""),
    (deploy.check_metrics, leasing(METRICS_TOKEN=None), ""),
    (deploy.check_metrics, leasing(METRICS_TOKEN="0123456789abcdef" * 2), ""),
    (deploy.check_metrics, leasing(METRICS_TOKEN="prom"), "leasing.W108"),
    (deploy.check_times, leasing(), ""),
    (deploy.check_times, leasing(TTL=5), ""),
    (deploy.check_times, leasing(TTL=4.9), "leasing.W101"),
    (deploy.check_times, leasing(TTL="soon"), ""),  # leasing.E002
    (deploy.check_times, leasing(MARGIN=0), "leasing.W102"),
    (deploy.check_times, leasing(MARGIN=None), ""),
    (deploy.check_times, leasing(MARGIN=0.1), ""),
    (deploy.check_enabled, leasing(ENABLED=False), "leasing.W007"),
    (deploy.check_proxies, proxies("10.0.0.5", "unix:", "10.0.1.0/24", "fd00::1"), ""),
    (deploy.check_proxies, proxies("10.0.0.0/8"), "leasing.W109"),
    (deploy.check_proxies, proxies("10.0.0.5", "::/0"), "leasing.W109"),
    (deploy.check_proxies, proxies("no network"), ""),
    (deploy.check_proxies, proxies(), ""),
    (deploy.check_proxies, proxies("10.0.0.0/8", access="closed"), ""),
    (deploy.check_proxies, behind_tls(), "leasing.W110"),
    (deploy.check_proxies, behind_tls(CSRF_COOKIE_SECURE=False), ""),
    (
        deploy.check_proxies,
        behind_tls(SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https")),
        "",
    ),
    (deploy.check_proxies, behind_tls(CSRF_TRUSTED_ORIGINS=["https://a.example"]), ""),
    (stores.check_addresses, central("http://leases.example.com/api", **SECRET), "leasing.W112"),
    (stores.check_addresses, central("http://10.0.0.5:8000/api", **SECRET), "leasing.W112"),
    (stores.check_addresses, central("http://127.0.0.2:8000/api", **SECRET), ""),
    (stores.check_addresses, central("http://[::1]/api", **SECRET), ""),
    (stores.check_addresses, central("http://localhost/api", **SECRET), ""),
    (stores.check_addresses, central("https://leases.example.com/api", **SECRET), ""),
    (stores.check_addresses, central("http://leases.example.com/api"), ""),
    (task_checks.check_growth, queue(), ""),
    (task_checks.check_growth, queue(PRUNE_EVERY=None), "leasing_tasks.W101"),
    (task_checks.check_growth, queue(RETENTION={"succeeded": None}), "leasing_tasks.W102"),
    (task_checks.check_growth, queue(RETENTION={"cancelled": None}), "leasing_tasks.W102"),
    (task_checks.check_growth, queue(RETENTION={"failed": None}), ""),
    (task_checks.check_growth, queue(RETENTION=3), ""),  # leasing_tasks.E010
    (task_checks.check_growth, queue(SAMPLE_RETENTION=None), "leasing_tasks.W102"),
    (task_checks.check_growth, queue(SAMPLE_RETENTION=None, SAMPLES=False), ""),
    (task_checks.check_growth, queue(OUTBOX_RETENTION=None), "leasing_tasks.W102"),
    (
        task_checks.check_broker,
        queue(CELERY_APP="nothing.here", CELERY_QUEUES=["default"]),
        "leasing_tasks.E101",
    ),
]


@pytest.mark.parametrize(
    ("check", "given", "found"),
    ROWS,
    ids=[f"{check.__name__}: {given}: {found or 'fine'}"[:150] for check, given, found in ROWS],
)
def test_what_is_unsafe_in_settings_is_found_and_what_is_safe_is_not(
    check: Callable[..., Iterable[CheckMessage]], given: dict[str, Any], found: str, settings: Any
) -> None:
    for name, value in given.items():
        setattr(settings, name, value)

    assert ids(check()) == ([found] if found else [])


@pytest.mark.django_db
def test_tokens_that_never_expire_are_warned_of() -> None:
    soon = datetime(2099, 1, 1, tzinfo=UTC)
    ApiToken.objects.issue("ends", scopes=["leasing.view_lease"], expires_at=soon)
    assert ids(deploy.check_tokens(databases=["default"])) == []
    for number in range(6):
        ApiToken.objects.issue(f"ci-{number}", scopes=["leasing.view_lease"])
    (warning,) = deploy.check_tokens(databases=["default"])
    assert warning.id == "leasing.W111"
    assert warning.msg.endswith("ci-5, ci-4, ci-3, ci-2, ci-1 and others.")
    assert ids(deploy.check_tokens()) == []
    ApiToken.objects.revoke()
    assert ids(deploy.check_tokens(databases=["default"])) == []


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


@pytest.mark.django_db
def test_the_server_is_asked_only_where_the_checks_may() -> None:
    assert deploy.check_server() == []
    assert deploy.check_server(databases=["archive"]) == []


@pytest.mark.django_db
def test_a_server_set_up_as_usual_is_fine() -> None:
    assert ids(deploy.check_server(databases=["default"])) == []


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

    assert ids(deploy.check_role("default")) == [expected]


@pytest.mark.django_db
def test_the_settings_of_the_session_are_what_is_read() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL's settings")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_isolation = 'serializable'")
        cursor.execute("SET LOCAL transaction_read_only = on")

    assert ids(deploy.check_role("default")) == ["leasing.E103", "leasing.W105"]


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

    assert ids(deploy.check_pooler("default", lambda using: arrive)) == expected


# Brokers


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


# All together


def test_the_checks_are_for_deployments_only(settings: Any) -> None:
    settings.LEASING = {"TTL": 2}
    settings.TASK_QUEUE = {"PRUNE_EVERY": None}
    mine = {"leasing.W101", "leasing_tasks.W101"}

    assert not mine & {message.id for message in run_checks()}
    assert mine <= {m.id for m in run_checks(include_deployment_checks=True)}


@pytest.mark.slow
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
