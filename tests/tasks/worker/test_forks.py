"""Handlers that fork: their copies end with the call, and do nothing that is the worker's."""

from __future__ import annotations

import signal

import pytest

from tasks.models import Task
from tests.conftest import Spawn
from tests.factories import make_task
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

#: The exit codes of copies, by what they do instead of ``os._exit()``.
CODES = {"return": 0, "raise": 1, "exit": 3}
ASYNC_CODES = CODES | {"await": 0}


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("fork", CODES),
        ("fork_in_process", CODES),
        ("fork_in_coroutine", ASYNC_CODES),
        ("fork_in_coroutine_in_process", ASYNC_CODES),
    ],
)
def test_a_copy_made_by_a_handler_ends_with_the_call_and_stores_no_result(
    name: str, codes: dict[str, int], spawn: Spawn
) -> None:
    tasks = [make_task(name=f"jobs.{name}", data={"end": end}, max_attempts=1).pk for end in codes]

    worker = spawn(["manage.py", "run_worker"])
    wait_for(lambda: not Task.objects.filter(processed_at=None).exists(), process=worker)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(20) == 0
    rows = Task.objects.order_by("pk").values_list("status", "task_output", "last_error")
    assert list(rows) == [("succeeded", code, "") for code in codes.values()]
    for key in tasks:
        assert worker.output.count(f"task:{key}: the handler forked") == 1
