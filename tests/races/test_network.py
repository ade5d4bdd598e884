"""Workers whose network swallows what the database answers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tasks.models import Task, Worker
from tests.conftest import Spawn
from tests.factories import make_task, make_tasks
from tests.plugin import DATABASE
from tests.processes import Process, wait_for
from tests.proxy import Proxy
from tests.races.test_losing import socket_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="there is no network to SQLite"),
]

#: A worker that is soon through with what others wait a while for.
WORKER = """
import django; django.setup()
from django.conf import settings
from django.core.management import call_command
from tasks.runtime import connection
connection.STOP_TIMEOUT = 0.3
settings.LEASING = {"TTL": 2}
settings.TASK_QUEUE = {"ANSWER_TIMEOUT": 0.4, "HANDLER_ANSWER_TIMEOUT": 0.4, "POLL_EVERY": 0.1,
    "SWEEP_EVERY": 0.2, "BACKOFF": {"base": 0.01, "cap": 0.01}, "STOP_TIMEOUT": 1}
call_command("run_worker", name="ann")
"""


@pytest.fixture
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    folder = socket_folder(request.config.stash[DATABASE].url)
    if not folder:
        pytest.skip("the server that was given has no socket here")
    (tmp_path / "net").mkdir()
    proxy = Proxy(tmp_path / "net", Path(folder))
    yield proxy
    proxy.close()


@pytest.fixture
def start(spawn: Spawn, network: Proxy) -> Callable[..., Process]:
    def begin(program: str = WORKER) -> Process:
        name = connection.settings_dict["NAME"]
        url = f"postgresql://postgres@/{name}?host={network.folder}"
        worker = spawn(["-c", program], DATABASE_URL=url)
        wait_for(Worker.objects.labelled("ann").exists, process=worker)
        return worker

    return begin


def test_a_worker_whose_answers_were_lost_goes_on(
    start: Callable[[], Process], network: Proxy
) -> None:
    options: dict[str, Any] = {"name": "jobs.echo", "data": {}, "max_attempts": 100}
    worker = start()
    for _ in range(4):
        make_tasks(50, **options)
        wait_for(Task.objects.succeeded().exists, process=worker)
        network.swallow_replies()
    wait_for(lambda: Task.objects.succeeded().count() == 200, process=worker)

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


@pytest.mark.parametrize("working", [False, True])
def test_a_worker_is_stopped_in_a_black_hole(
    working: bool, start: Callable[[], Process], network: Proxy, tmp_path: Path
) -> None:
    worker = start()
    if working:
        (tmp_path / "polite").touch()
        make_task(name="jobs.wait", data={"folder": str(tmp_path)})
        wait_for((tmp_path / "began-1").exists, process=worker)
    network.swallow()
    time.sleep(0.2)  # let what it asks next be swallowed

    worker.send_signal(signal.SIGTERM)
    worker.wait(25)


#: A worker with the timeouts that it has in production, and a short ttl.
USUAL_WORKER = """
import django; django.setup()
from django.core.management import call_command
call_command("run_worker", name="ann", ttl=4, threads=16)
"""


@pytest.mark.parametrize("replies_only", [True, False], ids=["replies", "all"])
@pytest.mark.parametrize("times", [0, 5], ids=["the worker's statements", "handlers' statements"])
def test_a_worker_does_all_its_tasks_though_the_network_loses_answers(
    times: int, replies_only: bool, start: Callable[..., Process], network: Proxy
) -> None:
    data = {"pause": 0.03, "times": times}
    worker = start(USUAL_WORKER)
    Task.objects.enqueue_many("jobs.read", [data] * 2000, max_attempts=100)
    # The worker's schedule enqueues others meanwhile.
    succeeded = Task.objects.succeeded().filter(name="jobs.read")
    wait_for(succeeded.exists, process=worker)
    for _ in range(4):
        time.sleep(0.3)
        network.lose(0.4, replies_only=replies_only)
        time.sleep(0.4)
    assert succeeded.count() < 2000

    # The statements of handlers alone would be waited for HANDLER_ANSWER_TIMEOUT seconds.
    wait_for(lambda: succeeded.count() == 2000, timeout=120, process=worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(40) == 0
