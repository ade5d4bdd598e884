"""The exit of a worker's process."""

from __future__ import annotations

import signal

import pytest

from tasks.models import Task
from tests.conftest import Spawn
from tests.factories import make_task
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_threads_that_handlers_leave_do_not_keep_a_worker_from_its_exit(spawn_cold: Spawn) -> None:
    make_task(name="jobs.leave_thread", data={})

    worker = spawn_cold(["manage.py", "run_worker", "--workers", "0", "--stop-timeout", "2"])
    wait_for(Task.objects.succeeded().exists, process=worker)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(20) == 0
    assert "threads that handlers left still run: left behind" in worker.output
