"""The clients work without Django, and with one that nobody has set up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.plugin import ROOT

#: Refuses what an environment with httpx alone does not have, and holds a lease until it is lost.
PROGRAM = """
import importlib, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {root!r})

import httpx

LEASE = {{
    "resource": "report:42", "holder": "web-1", "fencing_token": 7, "lease_key": "k" * 43,
    "expires_at": "2026-01-31T12:00:00.000Z", "ttl": 1.0, "remaining": 1.0, "yield_to": "",
    "is_last": False,
}}
renewals = []

def answer(request):
    if request.url.path.endswith("/batch"):
        renewals.append(request)
        result = {{"status": 201, "lease": LEASE}}
        if len(renewals) > 1:
            result = {{"status": 409, "error": "report:42 was lost: it was revoked."}}
        return httpx.Response(200, json={{"results": [result]}})
    return httpx.Response(201, json=LEASE)

from leasing.client import LeaseClient
from leasing.exceptions import LeaseLost

calls = []
with LeaseClient("https://leases/api", "token", transport=httpx.MockTransport(answer)) as leases:
    try:
        with leases.hold("report:42", ttl=1, on_lost=calls.append) as hold:
            hold.lost.wait(20)
    except LeaseLost as lost:
        print(lost)
from leasing.keeper import keeper
keeper.stop()
import tasks.client
print(calls == [hold], len(renewals), "django.db" in sys.modules)
"""
#: What comes with Django, or with an extra other than ``client``.
ABSENT = {"django", "asgiref", "sqlparse", "cronsim", "ninja", "pydantic", "psycopg", "celery"}


@pytest.mark.parametrize("absent", [ABSENT, set()], ids=["without", "with"])
def test_a_lease_is_held_without_django(absent: set[str]) -> None:
    program = PROGRAM.format(names=absent, root=str(ROOT))
    env = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}

    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", program],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stderr.startswith("web-1 lost report:42: it was revoked")
    assert done.stdout == "report:42 was lost: it was revoked.\nTrue 2 False\n"
    assert done.returncode == 0
