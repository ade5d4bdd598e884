"""Calls of the API in tests, and what every answer must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.test import Client

#: Every route with a body, and the fields it cannot do without.
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/leases", {"resource": "crane:1", "holder": "me"}),
    ("PUT", "/leases/renew", {"resource": "crane:1", "holder": "me"}),
    ("PUT", "/leases/renew/batch", {"leases": [{"resource": "crane:1", "holder": "me"}]}),
    ("DELETE", "/leases/release", {"resource": "crane:1", "holder": "me"}),
    ("DELETE", "/leases/1", {"resource": "crane:1", "holder": "me"}),
    ("POST", "/tasks", {"name": "jobs.echo"}),
    ("POST", "/tasks/next", {"processor": "me"}),
    ("PUT", "/tasks/1/heartbeat", {"processor": "me"}),
    ("PUT", "/tasks/1/complete", {"processor": "me"}),
    ("PUT", "/tasks/1/fail", {"processor": "me", "error": "it broke"}),
    ("PUT", "/tasks/1/progress", {"processor": "me"}),
]

#: Routes of operators, the permission that each asks for, and the fields it cannot do without.
OPERATIONS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("PUT", "/leases/1/revoke", "leasing.revoke_lease", {"reason": "host is gone"}),
    ("PUT", "/tasks/1/cancel", "leasing_tasks.cancel_task", {"reason": "no need"}),
    ("PUT", "/tasks/1/retry", "leasing_tasks.retry_task", {}),
    ("PUT", "/tasks/1/reschedule", "leasing_tasks.reschedule_task", {"queue": "default"}),
    ("PUT", "/tasks/1/revoke", "leasing.revoke_lease", {"reason": "host is gone"}),
    ("PUT", "/queues/default/pause", "leasing_tasks.pause_queue", {"reason": "month end"}),
    ("PUT", "/queues/default/resume", "leasing_tasks.pause_queue", {}),
    ("PUT", "/schedules/nightly/pause", "leasing_tasks.change_schedule", {}),
    ("PUT", "/schedules/nightly/resume", "leasing_tasks.change_schedule", {}),
    ("POST", "/schedules/nightly/run", "leasing_tasks.change_schedule", {}),
]
BODIES += [(method, path, body) for method, path, _, body in OPERATIONS if body]


@dataclass(frozen=True)
class Answer:
    """The answer to a call."""

    status: int
    body: Any
    headers: Mapping[str, str]


def call(
    client: Client,
    method: str,
    path: str,
    body: Any = None,
    *,
    content_type: str = "application/json",
    **extra: Any,
) -> Answer:
    """Ask the API for ``path`` below /api with ``body``: bytes as they are, None for nothing,
    anything else as JSON. Fails unless the answer has the form of an answer."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    response = client.generic(method, f"/api{path}", raw, content_type=content_type, **extra)
    answer = Answer(response.status_code, json.loads(response.content), response.headers)
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert "no-store" in answer.headers["Cache-Control"]
    check_form(answer)
    return answer


def check_form(answer: Answer) -> None:
    """An error is ``{"error": text}``, and one of the two 409 of a task a notice."""
    assert isinstance(answer.body, dict)
    if answer.status >= 400 and "status" not in answer.body:
        (key,) = answer.body
        assert key == "error" or (answer.status == 409 and key == "message")
        assert isinstance(answer.body[key], str)
        assert answer.body[key]
