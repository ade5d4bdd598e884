"""Real workers, in each way in which Celery runs more than one task at a time."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from celery import Celery

from tests.brokers import Broker
from tests.conftest import Spawn
from tests.processes import wait_for

pytestmark = pytest.mark.slow

CALLS = 6


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_call_at_a_time_runs_and_none_is_lost(
    pool: str, redis_broker: Broker, spawn: Spawn, tmp_path: Path
) -> None:
    queue, path = str(uuid.uuid4()), tmp_path / "gate"
    args = ["-m", "celery", "-A", "tests.leasing.celery.project", "worker", "-P", pool, "-c", "3"]
    args += ["-Q", queue, "--without-gossip", "--without-mingle", "--without-heartbeat"]
    with Celery("sender", broker=redis_broker.url, set_as_current=False) as app:
        for _ in range(CALLS):
            app.send_task("cross", ("north", str(path)), queue=queue)

    worker = spawn(args, PYTHONWARNINGS="ignore", BROKER=redis_broker.url, LEASING_TTL="5")

    def crossed() -> bool:
        return path.exists() and path.read_text().count("out") == CALLS

    wait_for(crossed, timeout=90, process=worker)
    lines = path.read_text().splitlines()
    assert lines[1::2] == ["out"] * CALLS
    tokens = [int(line.removeprefix("in ")) for line in lines[::2]]
    assert tokens == sorted(set(tokens))
