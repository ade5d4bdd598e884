"""The demo site as one service alone: its apps, addresses, pages and API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.plugin import ROOT
from tests.test_project import read_settings

TASKS = (
    "Overview,Tasks,Stuck,Leases,Idempotency keys,Queues,Handlers,Schedules,Workers,Audit,Runbook"
)


@pytest.mark.parametrize(
    ("services", "has_tasks"), [("leases", False), ("tasks", True), ("tasks,leases", True)]
)
def test_only_a_task_service_has_the_app_of_tasks(
    monkeypatch: pytest.MonkeyPatch, services: str, has_tasks: bool
) -> None:
    settings = read_settings(monkeypatch, SERVICES=services)

    assert "leasing" in settings["INSTALLED_APPS"]
    assert ("tasks" in settings["INSTALLED_APPS"]) is has_tasks
    assert settings["SERVICES"] == set(services.split(","))


@pytest.mark.parametrize("services", ["", "2", "lease", "leases,task"])
def test_a_service_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, services: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="SERVICES must be"):
        read_settings(monkeypatch, SERVICES=services)


def test_the_generators_lease_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = read_settings(monkeypatch)
    assert "STORES" not in alone["LEASING"] and "GENERATOR_STORE" not in alone["TASK_QUEUE"]

    url = "https://leases.example.com/api"
    settings = read_settings(monkeypatch, LEASE_SERVICE_URL=url, LEASE_SERVICE_TOKEN="leasing_x")

    central = settings["LEASING"]["STORES"][settings["TASK_QUEUE"]["GENERATOR_STORE"]]
    assert (central["URL"], central["TOKEN"]) == (url, "leasing_x")
    assert settings["TASK_QUEUE"]["GENERATOR_LEASE"] == "demo.generator"

    settings = read_settings(monkeypatch, LEASE_SERVICE_URL="", LEASE_REDIS_URL="redis://here/3")
    central = settings["LEASING"]["STORES"][settings["TASK_QUEUE"]["GENERATOR_STORE"]]
    assert (central["BACKEND"], central["URL"]) == (
        "leasing.stores.redis.RedisStore",
        "redis://here/3",
    )


def described(services: str) -> dict[str, Any]:
    """Return what ``tests.one_service`` prints about a site that is ``services``."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.one_service"],
        cwd=ROOT,
        env={**os.environ, "SERVICES": services},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    description: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return description


@pytest.mark.slow
def test_the_lease_service_has_leases_alone() -> None:
    site = described("leases")

    missing = {path for path, status in site.pop("statuses").items() if status == 404}
    assert missing == {"/ops/tasks/", "/api/tasks"}
    assert site == {
        "home": ["/ops/leases/", "/admin/", "/api/leases"],
        "brand": [["/ops/leases/", "Lease service"]],
        "menu": ["Leases", "Audit"],
        "title": "Lease service",
        "parts": ["healthz", "leases", "readyz"],
        "login": 200,
    }


@pytest.mark.slow
def test_the_task_service_serves_no_leases_to_clients() -> None:
    site = described("tasks")

    missing = {path for path, status in site.pop("statuses").items() if status == 404}
    assert missing == {"/api/leases"}
    assert site == {
        "home": ["/ops/", "/admin/", "/api/tasks"],
        "brand": [["/ops/", "Task service"]],
        "menu": TASKS.split(","),
        "title": "Task service",
        "parts": ["generator", "healthz", "queues", "readyz", "schedules", "tasks", "workers"],
        "login": 200,
    }


@pytest.mark.slow
def test_both_services_in_one_are_the_site_as_ever() -> None:
    site = described("leases,tasks")

    assert set(site["statuses"].values()) == {200}
    assert site["home"] == ["/ops/", "/admin/", "/api/leases"]
    assert site["brand"] == [["/ops/", "Leases &amp; tasks"]]
    assert site["menu"] == TASKS.split(",")
    assert site["title"] == "Leases and tasks"
    assert {"leases", "tasks", "healthz"} <= set(site["parts"])
