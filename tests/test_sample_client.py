"""A client of the sample service, written as its clients are, over HTTP against a real server.

It knows what the sample documents and no more: JSON over HTTP, no credentials, no tokens, now
the one spelling of a field and now the other.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from tasks.models import Task

pytestmark = pytest.mark.django_db(transaction=True)


class Reply(NamedTuple):
    """Status and body, as a client sees them."""

    status: int
    json: Any


class SampleClient:
    """Knows the address of the service, and nothing else."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def get(self, path: str) -> Reply:
        return self._send("GET", path)

    def post(self, path: str, **body: Any) -> Reply:
        return self._send("POST", path, body)

    def put(self, path: str, **body: Any) -> Reply:
        return self._send("PUT", path, body)

    def delete(self, path: str, **body: Any) -> Reply:
        return self._send("DELETE", path, body)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Reply:
        request = urllib.request.Request(f"{self.base_url}{path}", method=method)
        if body:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return Reply(response.status, json.load(response))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, json.load(error))


@pytest.fixture
def service(live_server: LiveServer, settings: Settings) -> Iterator[SampleClient]:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "compatible"}
    yield SampleClient(f"{live_server.url}/api")


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


def test_a_lease_goes_from_hand_to_hand(service: SampleClient) -> None:
    term = {"resource": "/jobs/nightly", "holder": "host-1"}
    acquired = service.post("/leases", **term)
    assert acquired.status == 201
    lease = acquired.json
    assert moment(lease["expires_at"]) - moment(lease["created_at"]) == timedelta(seconds=30)
    assert lease["renewed_at"] is None
    assert lease["released_at"] is None

    for holder in ("host-1", "host-2"):
        held = service.post("/leases", resource="/jobs/nightly", holder=holder)
        assert held.status == 409
        assert "host-1" in held.json["error"]

    renewed = service.put("/leases/renew", **term)
    assert renewed.status == 201
    assert renewed.json["id"] == lease["id"]
    assert moment(renewed.json["expires_at"]) >= moment(lease["expires_at"])
    assert service.put("/leases/renew", resource="/jobs/nightly", holder="host-2").status == 404

    for path in ("/leases", "/leases/active", "/leases/renewed"):
        (listed,) = service.get(path).json["leases"]
        assert listed["id"] == lease["id"]
        assert listed["expiresAt"] == renewed.json["expires_at"]
        assert listed["renewedAt"]
    assert service.get(f"/leases/{lease['id']}").json["createdAt"] == lease["created_at"]
    assert service.get("/leases/4711").status == 404

    released = service.delete("/leases/release", **term)
    assert released.status == 201
    assert released.json["released_at"] == released.json["expires_at"]
    assert service.delete("/leases/release", **term).status == 404
    assert service.get("/leases/active").json == {"leases": []}
    assert service.get("/leases/released").json["leases"][0]["releasedAt"]

    again = service.post("/leases", resource="/jobs/nightly", holder="host-2").json
    assert again["id"] == lease["id"]
    assert again["released_at"] is None
    other = service.delete(f"/leases/{lease['id']}", **term)
    assert other.status == 404
    mine = service.delete(f"/leases/{lease['id']}", resource="/jobs/nightly", holder="host-2")
    assert mine.status == 200
    assert mine.json["message"]


def test_a_task_is_worked_off(service: SampleClient) -> None:
    nothing = service.post("/tasks/next", processor="host-1")
    assert nothing.status == 200
    assert nothing.json["message"]

    Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 3})
    claimed = service.post("/tasks/next", processor="host-1")
    assert claimed.status == 202
    task = claimed.json
    assert (task.get("taskData") or task["task_data"])["sleep_duration_seconds"] == 3
    assert task["processor"] == "host-1"
    assert task["processedAt"] is None
    deadline = moment(task["mustHeartBeatBefore"])
    assert deadline > moment(task["lastHeartBeatAt"])
    (lease,) = service.get("/leases/active").json["leases"]
    assert lease["resource"] == f"/api/tasks/{task['id']}"
    assert [each["id"] for each in service.get("/tasks/started").json["tasks"]] == [task["id"]]

    path = f"/tasks/{task['id']}"
    beaten = service.put(f"{path}/heartbeat", processor="host-1")
    assert beaten.status == 202
    assert moment(beaten.json["mustHeartBeatBefore"]) >= deadline
    for verb in ("heartbeat", "complete"):
        stranger = service.put(f"{path}/{verb}", processor="host-2", task_output="x")
        assert stranger.status == 200
        assert stranger.json["message"]

    done = service.put(f"{path}/complete", processor="host-1", task_output={"slept": 3})
    assert done.status == 202
    assert done.json["taskOutput"] == done.json["task_output"] == {"slept": 3}
    # A client of the sample may not expect it to be a heartbeat: docs/http-api.md.
    assert done.json["lastHeartBeatAt"] == beaten.json["lastHeartBeatAt"]
    for verb in ("heartbeat", "complete"):
        late = service.put(f"{path}/{verb}", processor="host-1", task_output="x")
        assert late.status == 409
        assert late.json["message"]
    assert service.get(path).json["task"]["processedAt"]
    assert service.get("/tasks/started").json == {"tasks": []}
    assert len(service.get("/tasks/processed").json["tasks"]) == 1
    assert len(service.get("/tasks").json["tasks"]) == 1
    assert service.get("/leases/active").json == {"leases": []}
