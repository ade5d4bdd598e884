"""A client that a public generator makes from the document works with the API, by its types.

It is made by the command of docs/http-api.md, which ends with an error where the generator cannot
use a part of the document.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from leasing.models import ApiToken, Lease
from tasks.models import Task
from tests.fixtures import compatible
from tests.plugin import ROOT
from tests.web_servers import Site

__all__ = ["compatible"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: Returns a module of the generated package, by its name there.
Generated = Callable[[str], ModuleType]
SCOPES = [
    *("leasing.view_lease", "leasing.change_lease"),
    *("leasing_tasks.view_task", "leasing_tasks.view_payload"),
    *("leasing_tasks.add_task", "leasing_tasks.change_task"),
]


def generated(server: LiveServer, folder: Path, **headers: str) -> Generated:
    """Make the package in ``folder``, from the document that ``server`` serves now."""
    answer = Site(server.thread.port).call("GET", "/openapi.json", headers=headers)
    assert answer.status == 200, answer
    (folder / "openapi.json").write_text(json.dumps(answer.body))
    page = (ROOT / "docs" / "http-api.md").read_text()
    (line,) = [each for each in page.splitlines() if each.startswith("openapi-python-client ")]
    # It calls a formatter that is installed with it.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = subprocess.run(
        shlex.split(line),
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert made.returncode == 0, made.stdout
    assert "warning" not in made.stdout.lower()
    (package,) = [each.name for each in folder.iterdir() if each.is_dir()]
    return lambda name: importlib.import_module(f"{package}.{name}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages can be imported until the test has ended."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in sys.modules.keys() - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_generated_client_holds_a_lease_and_works_a_task(
    live_server: LiveServer, folder: Path
) -> None:
    _, secret = ApiToken.objects.issue("generated", scopes=SCOPES)
    of = generated(live_server, folder, Authorization=f"Bearer {secret}")
    models, leases, tasks = of("models"), "api.leases.", "api.tasks."
    with of("client").AuthenticatedClient(live_server.url, token=secret) as client:

        def call(name: str, *path: Any, **said: Any) -> Any:
            return of(name).sync(*path, client=client, **said)

        wanted = models.Acquire(resource="crane:1", holder="me", ttl=60.0)
        taken = signature(of(leases + "acquire_lease").sync).parameters["idempotency_key"]
        assert str in taken.annotation.__args__
        once = str(uuid.uuid4())
        lease = call(leases + "acquire_lease", body=wanted, idempotency_key=once)
        assert isinstance(lease, models.GrantOut)
        assert isinstance(lease.expires_at, datetime)
        assert (lease.holder, lease.grants, lease.is_last) == ("me", 1, False)
        again = call(leases + "acquire_lease", body=wanted, idempotency_key=once)
        assert again.fencing_token == lease.fencing_token
        held = call(leases + "acquire_lease", body=wanted)
        assert isinstance(held, models.Error)

        term = models.Term(resource="crane:1", lease_key=lease.lease_key)
        renewed = call(leases + "renew_lease", body=term)
        assert isinstance(renewed, models.GrantOut)
        assert 59 < renewed.remaining <= 60
        page = call(leases + "list_active_leases", limit=1)
        assert [each.id for each in page.leases] == [lease.id]
        released = call(leases + "release_lease", body=term)
        assert isinstance(released.released_at, datetime)

        data = {"sleep_duration_seconds": 1}
        given = models.EnqueueDataType0.from_dict(data)
        asked = models.Enqueue(name="sample.sleep", data=given)
        task = call(tasks + "enqueue_task", body=asked)
        assert isinstance(task, models.TaskOut)
        claimed = call(tasks + "claim_next_task", body=models.Claim(processor="worker-9"))
        assert isinstance(claimed, models.ClaimedTask)
        assert (claimed.id, claimed.task_data) == (task.id, data)
        holder = models.Holder(lease_key=claimed.lease_key)
        beat = call(tasks + "heartbeat_task", claimed.id, body=holder)
        assert isinstance(beat, models.HeldTask)
        assert beat.must_heartbeat_before >= claimed.must_heartbeat_before
        done = models.Complete(lease_key=claimed.lease_key, task_output={"rows": 17})
        ended = call(tasks + "complete_task", claimed.id, body=done)
        assert isinstance(ended, models.TaskOut)
        assert (ended.status, ended.task_output) == ("succeeded", {"rows": 17})
        nothing = call(tasks + "claim_next_task", body=models.Claim(processor="worker-9"))
        assert isinstance(nothing, models.Notice)

    assert Task.objects.get().status == "succeeded"


@pytest.mark.usefixtures("compatible")
def test_a_client_generated_in_the_compatible_mode_needs_no_credentials(
    live_server: LiveServer, folder: Path
) -> None:
    of = generated(live_server, folder)
    models = of("models")
    with of("client").Client(live_server.url) as client:
        wanted = models.Acquire(resource="crane:1", holder="me")
        of("api.leases.acquire_lease").sync(client=client, body=wanted)
        term = models.Term(resource="crane:1", holder="me")
        renewed = of("api.leases.renew_lease").sync(client=client, body=term)
        assert isinstance(renewed, models.GrantOut)

    assert Lease.objects.get().renewals == 1
