"""``/metrics`` where several processes share their counts, and are forked from one that counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from tests.metrics import Scrape

pytestmark = pytest.mark.django_db

#: Counts three releases; then each of two forks counts some, and one more is counted here.
FORKING = """
import os
from django.conf import settings
settings.LEASING = {"METRICS": True}
import django; django.setup()
from leasing.runtime.events import happened
from leasing.models import Lease

def release(times):
    for _ in range(times):
        happened("lease.released", [Lease(resource="crane:1")])

release(3)
for times in (10, 200):
    child = os.fork()
    if not child:
        release(times)
        os._exit(0)
    os.waitpid(child, 0)
release(1)
"""


@pytest.mark.slow
def test_a_forked_process_counts_its_own_work_alone(
    tmp_path: Path,
    process_env: dict[str, str],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {**process_env, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FORKING], env=env, check=True, timeout=60)
    settings.LEASING = {**settings.LEASING, "METRICS_TOKEN": "secret"}
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))

    page = Client().get("/ops/metrics", headers={"Authorization": "Bearer secret"})

    found = Scrape(page.content.decode())
    assert found.sum("leasing_releases_total", model="leasing.lease") == 3 + 10 + 200 + 1
    # A file for each process: none writes into that of another.
    assert len({each.name for each in tmp_path.glob("counter_*.db")}) == 3
