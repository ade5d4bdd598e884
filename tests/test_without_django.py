"""The clients work without Django, and with one that nobody has set up: the settings that the
environment names may be another project's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin import ROOT

pytestmark = pytest.mark.slow

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
from leasing.holding.keeper import keeper
keeper.stop()
import tasks.client
print(calls == [hold], len(renewals), "django.db" in sys.modules)
"""
#: Names settings that cannot be imported from where the client runs.
FOREIGN = {"DJANGO_SETTINGS_MODULE": "another_project.settings"}
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
#: What comes with Django, or with an extra other than ``client``.
ABSENT = {"django", "asgiref", "sqlparse", "cronsim", "ninja", "pydantic", "psycopg", "celery"}


@pytest.mark.parametrize(
    ("absent", "env"),
    [(ABSENT, {}), (set(), {}), (set(), FOREIGN)],
    ids=["without", "with", "with settings of another project"],
)
def test_a_lease_is_held_without_django(absent: set[str], env: dict[str, str]) -> None:
    program = PROGRAM.format(names=absent or "()", root=str(ROOT))
    env = PLAIN | env

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


def test_a_remote_worker_reads_no_settings_of_another_project(tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(
        "from tasks.client import handler\n@handler('jobs.echo')\ndef echo(ctx):\n    pass\n"
    )
    address = "http://127.0.0.1:1/api"  # nobody listens there

    arguments = ["-m", "tasks.client", "--url", address, str(handlers)]
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=PLAIN | FOREIGN,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None
        lines = [worker.stderr.readline() for _ in range(2)]
        worker.kill()

    assert address in lines[0]
    assert f"No answer from {address} to POST /tasks/next" in lines[1]
    assert "The request is sent again for up to 15 s" in lines[1]
