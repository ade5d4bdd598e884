"""Prints as JSON what the demo site has as one of its services: ``SERVICES=tasks python -m
tests.one_service``. Its database is in memory."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
os.environ["DATABASE_URL"] = "sqlite://:memory:"
django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

PATHS = (
    *("/", "/ops/login/", "/admin/", "/ops/", "/ops/leases/", "/ops/tasks/", "/ops/audit/"),
    *("/api/docs", "/api/healthz", "/api/leases", "/api/tasks"),
)


def describe() -> dict[str, Any]:
    """Return what an operator and a client see."""
    call_command("migrate", verbosity=0)
    call_command("check", "--fail-level", "WARNING")
    user = get_user_model()._default_manager.create(
        username="dora", is_staff=True, is_superuser=True
    )
    client = Client(SERVER_NAME="localhost")
    client.force_login(user)
    pages = {path: client.get(path, follow=True) for path in PATHS}
    ops = pages["/ops/"].content.decode()
    menu = ops[ops.index('<nav class="menu"') : ops.index("</nav>")]
    document = client.get("/api/openapi.json").json()
    return {
        "statuses": {path: page.status_code for path, page in pages.items()},
        "home": re.findall(r'<a href="([^"]+)"', pages["/"].content.decode()),
        "brand": re.findall(r'class="brand" href="([^"]*)">.*<span>(.*?)</span>', ops),
        "menu": re.findall(r"([A-Z][\w ]+)</a>", menu),
        "title": document["info"]["title"],
        "parts": sorted({path.split("/")[2] for path in document["paths"]}),
        "login": client.get("/ops/login/", follow=True).status_code,
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
