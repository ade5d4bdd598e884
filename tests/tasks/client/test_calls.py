"""Requests about tasks, over a network within this process.

``make mutants`` runs these tests, and none that needs a server.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from leasing.runtime.clock import clock
from tasks.client import TaskClient

TASK: dict[str, Any] = {
    **{"id": 17, "name": "jobs.echo", "queue": "default", "status": "running", "task_data": {}},
    **{"attempts": 1, "max_attempts": 1, "last_error": "", "checkpoints": 0, "processor": "me"},
    **{"lease_key": "key", "fencing_token": 7, "ttl": 30.0, "remaining": 30.0},
    **{"must_heartbeat_before": "2030-01-01T00:00:00Z"},
}


def test_trust_in_a_claim_counts_from_before_its_request_left() -> None:
    arrived: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        arrived.append(clock())
        return httpx.Response(202, content=json.dumps({"tasks": [TASK]}).encode())

    with TaskClient("http://127.0.0.1:1/api", transport=httpx.MockTransport(answer)) as tasks:
        (claimed,) = tasks.claim()

    assert claimed.term.sent_at <= arrived[0]
