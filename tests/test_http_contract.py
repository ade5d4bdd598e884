"""The HTTP contract with clients of the sample service, line by line: what happened before, a
request, its status, its body.

Paths name what they are about: ``{lease}`` is the id of a lease on crane:1, ``{task}`` that of a
task. ``test_sample_client.py`` speaks the same over the wire.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.test import Client
from pydantic import BaseModel

from leasing.models import Lease
from tasks.models import Task
from tests.api_calls import Answer, call
from tests.fixtures import compatible
from tests.leasing.support import expire
from tests.tasks.support import make_due

__all__ = ["compatible"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

ME = {"resource": "crane:1", "holder": "me"}
OTHER = {"resource": "crane:1", "holder": "other"}
MINE, OTHERS = {"processor": "me"}, {"processor": "other"}
OUTPUT, ERROR_OF = {"task_output": {"slept": 3}}, {"error": "it broke"}
FAILURE = MINE | ERROR_OF

LEASE = {"id", "resource", "holder", "created_at", "renewed_at", "released_at", "expires_at"}
TASK = {
    *("id", "task_data", "scheduled_at", "processor", "last_heartbeat_at"),
    *("must_heartbeat_before", "started_at", "processed_at", "task_output"),
}
#: The same names, as the other half of the sample's clients reads them.
CAMEL = {
    "last_heartbeat_at": "lastHeartBeatAt",
    "must_heartbeat_before": "mustHeartBeatBefore",
}
GENERATOR = {"isRunning", "status", "message"}


def both_spellings(names: set[str]) -> set[str]:
    def camel(name: str) -> str:
        return CAMEL.get(name) or re.sub("_([a-z])", lambda found: found[1].upper(), name)

    return names | set(map(camel, names))


#: What has happened before, by a name: requests, and what only time brings.
BEFORE: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "held": (("POST", "/leases", ME),),
    "held by another": (("POST", "/leases", OTHER),),
    "renewed": (("POST", "/leases", ME), ("PUT", "/leases/renew", ME)),
    "released": (("POST", "/leases", ME), ("DELETE", "/leases/release", ME)),
    "expired": (("POST", "/leases", ME), "expire the lease"),
    "revoked": (("POST", "/leases", ME), "revoke the lease"),
    "free": ("make the lease",),
    "enqueued": ("enqueue",),
    "claimed": ("enqueue", ("POST", "/tasks/next", MINE)),
    "claimed by another": ("enqueue", ("POST", "/tasks/next", OTHERS)),
    "late": ("enqueue", ("POST", "/tasks/next", MINE), "expire the task"),
    "recovered": ("enqueue", ("POST", "/tasks/next", MINE), "recover the task"),
    "taken over": (
        *("enqueue", ("POST", "/tasks/next", MINE), "recover the task"),
        ("POST", "/tasks/next", OTHERS),
    ),
    "failed": ("enqueue", ("POST", "/tasks/next", MINE), ("PUT", "/tasks/{task}/fail", FAILURE)),
    "taken away": ("enqueue", ("POST", "/tasks/next", MINE), "revoke the task"),
    "processed": (
        "enqueue",
        ("POST", "/tasks/next", MINE),
        ("PUT", "/tasks/{task}/complete", MINE | OUTPUT),
    ),
    "started": (("POST", "/generator/start", None),),
}


class Line(NamedTuple):
    """A line of the contract."""

    before: str
    method: str
    path: str
    body: dict[str, Any] | None
    status: int
    #: The keys that the body has, at least; or of which it consists, if it is an error or a notice.
    keys: set[str]
    #: The number of rows in a list.
    rows: int | None = None


def lists(kind: str, state: str, rows: dict[str, int]) -> Iterator[Line]:
    for before, count in rows.items():
        yield Line(before, "GET", f"/{kind}{state}", None, 200, {kind}, count)


ERROR, MESSAGE = {"error"}, {"message"}
TERM_VERBS = (
    ("PUT", "/leases/renew", 201, LEASE),
    ("DELETE", "/leases/release", 201, LEASE),
    ("DELETE", "/leases/{lease}", 200, MESSAGE),
)
TASK_VERBS = (
    ("heartbeat", MINE, OTHERS),
    ("complete", MINE | OUTPUT, OTHERS | OUTPUT),
    ("fail", FAILURE, OTHERS | ERROR_OF),
)
LINES = [
    # Leases
    *lists("leases", "", {"nothing": 0, "held": 1, "released": 1, "expired": 1, "claimed": 1}),
    *lists("leases", "/active", {"held": 1, "released": 0, "expired": 0, "claimed": 1}),
    *lists("leases", "/expired", {"held": 0, "released": 0, "expired": 1, "late": 1}),
    *lists("leases", "/renewed", {"held": 0, "renewed": 1}),
    *lists("leases", "/released", {"held": 0, "released": 1, "processed": 1}),
    Line("nothing", "POST", "/leases", ME, 201, both_spellings(LEASE)),
    Line("released", "POST", "/leases", OTHER, 201, both_spellings(LEASE)),
    Line("expired", "POST", "/leases", OTHER, 201, both_spellings(LEASE)),
    Line("revoked", "POST", "/leases", ME, 201, both_spellings(LEASE)),
    Line("free", "POST", "/leases", ME, 201, both_spellings(LEASE)),
    Line("nothing", "POST", "/leases", {"resource": "crane:1"}, 400, ERROR),
    Line("nothing", "POST", "/leases", {"holder": "me"}, 400, ERROR),
    Line("nothing", "POST", "/leases", ME | {"resource": 7}, 400, ERROR),
    Line("nothing", "POST", "/leases", ME | {"ttl": 0.001}, 400, ERROR),
    Line("held", "POST", "/leases", ME, 409, ERROR),
    Line("held", "POST", "/leases", OTHER, 409, ERROR),
    Line("held", "GET", "/leases/{lease}", None, 200, both_spellings(LEASE)),
    Line("nothing", "GET", "/leases/4711", None, 404, ERROR),
    *(
        line
        for method, path, status, keys in TERM_VERBS
        for line in (
            Line("held", method, path, ME, status, keys),
            Line("renewed", method, path, ME, status, keys),
            Line("held", method, path, {"resource": "crane:1"}, 400, ERROR),
            Line("held", method, path, {"holder": "me"}, 400, ERROR),
            Line("held by another", method, path, ME, 404, ERROR),
            Line("released", method, path, ME, 404, ERROR),
            Line("expired", method, path, ME, 404, ERROR),
            Line("revoked", method, path, ME, 404, ERROR),
            Line("free", method, path, ME, 404, ERROR),
        )
    ),
    Line("nothing", "PUT", "/leases/renew", ME, 404, ERROR),
    Line("nothing", "DELETE", "/leases/release", ME, 404, ERROR),
    Line("held", "DELETE", "/leases/4711", ME, 404, ERROR),
    # Tasks
    *lists("tasks", "", {"nothing": 0, "enqueued": 1, "processed": 1}),
    *lists("tasks", "/started", {"enqueued": 0, "claimed": 1, "processed": 0}),
    *lists("tasks", "/processed", {"claimed": 0, "processed": 1}),
    Line("enqueued", "GET", "/tasks/{task}", None, 200, {"task"}),
    Line("nothing", "GET", "/tasks/4711", None, 404, ERROR),
    Line("enqueued", "POST", "/tasks/next", MINE, 202, both_spellings(TASK)),
    Line("nothing", "POST", "/tasks/next", MINE, 200, MESSAGE),
    Line("claimed by another", "POST", "/tasks/next", MINE, 200, MESSAGE),
    Line("enqueued", "POST", "/tasks/next", {}, 400, ERROR),
    *(
        line
        for verb, mine, others in TASK_VERBS
        for line in (
            Line("claimed", "PUT", f"/tasks/{{task}}/{verb}", mine, 202, both_spellings(TASK)),
            Line("nothing", "PUT", f"/tasks/4711/{verb}", mine, 200, MESSAGE),
            Line("claimed", "PUT", f"/tasks/{{task}}/{verb}", others, 200, MESSAGE),
            Line("processed", "PUT", f"/tasks/{{task}}/{verb}", mine, 409, MESSAGE),
            Line("late", "PUT", f"/tasks/{{task}}/{verb}", mine, 409, ERROR),
            Line("enqueued", "PUT", f"/tasks/{{task}}/{verb}", mine, 200, MESSAGE),
            Line("recovered", "PUT", f"/tasks/{{task}}/{verb}", mine, 409, ERROR),
            Line("taken over", "PUT", f"/tasks/{{task}}/{verb}", mine, 200, MESSAGE),
            Line("failed", "PUT", f"/tasks/{{task}}/{verb}", mine, 409, ERROR),
            Line("taken away", "PUT", f"/tasks/{{task}}/{verb}", mine, 409, ERROR),
            Line("claimed", "PUT", f"/tasks/{{task}}/{verb}", {}, 400, ERROR),
        )
    ),
    # Generator, and health
    Line("nothing", "POST", "/generator/start", None, 200, GENERATOR),
    Line("started", "POST", "/generator/start", None, 200, GENERATOR),
    Line("started", "DELETE", "/generator/stop", None, 200, GENERATOR),
    Line("nothing", "DELETE", "/generator/stop", None, 200, GENERATOR),
    Line("started", "GET", "/generator/status", None, 200, GENERATOR),
    Line("nothing", "GET", "/healthz", None, 200, MESSAGE),
]


class Service:
    """Sends requests, and knows the ids that were answered."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ids = {"lease": "4711", "task": "4711"}

    def bring_about(self, before: str) -> None:
        for step in BEFORE[before]:
            match step:
                case "enqueue":
                    # No client of the sample enqueues.
                    data = {"sleep_duration_seconds": 3}
                    self._ids["task"] = str(Task.objects.enqueue("sample.sleep", data).pk)
                case "make the lease":
                    self._ids["lease"] = str(Lease.objects.create(resource="crane:1").pk)
                case "expire the lease":
                    expire(Lease.objects.get())
                case "revoke the lease":
                    Lease.objects.revoke("it hangs", "olga")
                case "expire the task":
                    expire(Task.objects.get())
                case "recover the task":
                    expire(Task.objects.get())
                    Task.objects.recover()
                    make_due(Task.objects.get())
                case "revoke the task":
                    Task.objects.revoke("it hangs", "olga")
                case (method, path, body):
                    answer = self.call(method, path, body)
                    assert answer.status in (200, 201, 202)
                    if path == "/leases":
                        self._ids["lease"] = str(answer.body["id"])

    def call(self, method: str, path: str, body: Any) -> Answer:
        return call(self._client, method, path.format(**self._ids), body)


def named(line: Line) -> str:
    given = " ".join(map(str, (line.body or {}).values()))
    return f"{line.before}: {line.method} {line.path} {given} -> {line.status}"


@pytest.mark.parametrize("line", LINES, ids=named)
def test_a_request_is_answered_as_the_contract_says(line: Line, client: Client) -> None:
    service = Service(client)
    service.bring_about(line.before)
    rows = [list(model.objects.order_by("pk").values()) for model in (Lease, Task)]

    answer = service.call(line.method, line.path, line.body)

    assert answer.status == line.status
    if line.keys in (ERROR, MESSAGE):
        assert answer.body.keys() == line.keys
    assert answer.body.keys() >= line.keys
    if line.rows is not None:
        (key,) = line.keys
        assert len(answer.body[key]) == line.rows
    if answer.status < 400:
        moments = re.findall(r'"\d[^"]*T\d\d:[^"]*"', json.dumps(answer.body))
        assert all(re.fullmatch(r'"[\d-]{10}T[\d:]{8}\.\d{3}Z"', each) for each in moments)
    elif line.before != "late":  # whose refusal ends the attempt
        now = [list(model.objects.order_by("pk").values()) for model in (Lease, Task)]
        assert now == rows
    if line.path == "/leases" and line.status == 409:
        assert 1 <= int(answer.headers["Retry-After"]) <= 30


def test_no_two_shapes_of_both_packages_have_one_name(client: Client) -> None:
    """The document would have the latter in place of the former."""
    client.get("/api/openapi.json")
    shapes = [BaseModel]
    for shape in shapes:
        shapes += shape.__subclasses__()
    ours = {each for each in shapes if re.match(r"(leasing|tasks)\.api\.", each.__module__)}
    names = Counter(each.__name__ for each in ours)
    assert ours
    assert [name for name, count in names.items() if count > 1] == []
