"""Verbs that wait for another session's write, at an isolation level that would fail them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasing.models import Lease
from leasing.stores import portable
from tasks.models import Schedule, Task
from tasks.sample import SLEEP
from tests.factories import make_lease, make_task
from tests.leasing.support import OtherSession, after_a_query_before, under_repeatable_read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_postgresql")]


def task_in(state: str) -> Callable[[], Task]:
    return lambda: make_task(state=state)


def schedule() -> Schedule:
    schedule: Schedule = Schedule.objects.create(
        name="nightly", task_name=SLEEP, task_data={"sleep_duration_seconds": 1}, cron="0 3 * * *"
    )
    return schedule


def mine(row: Any) -> Any:
    return type(row)._default_manager.filter(pk=row.pk)


#: What makes a row, and a verb that locks it.
VERBS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "fail": (task_in("running"), lambda task: Task.objects.fail(task, "no ink")),
    "finish a step": (task_in("running"), lambda task: Task.objects.finish_step(task, "a", 1)),
    "recover": (task_in("stuck"), lambda task: Task.objects.recover()),
    "retry": (task_in("failed"), lambda task: mine(task).retry()),
    # What one statement has passed over, because the row was locked.
    "release": (make_lease, lambda lease: portable.release(Lease.objects.home(), lease)),
    "revoke": (make_lease, lambda lease: mine(lease).revoke()),
    "raise tokens": (make_lease, lambda lease: Lease.objects.all().raise_tokens()),
    "pause a schedule": (schedule, lambda schedule: mine(schedule).pause()),
    "run a schedule": (schedule, lambda schedule: mine(schedule).run_now()),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_goes_by_what_another_session_has_written_under_any_isolation_level(
    verb: str, other_session: OtherSession
) -> None:
    make, call = VERBS[verb]
    row = make()

    def write() -> None:
        other_session.run(lambda: mine(row).update(priority=7))

    with under_repeatable_read(), after_a_query_before("FOR NO KEY UPDATE", write):
        assert call(row)
    row.refresh_from_db()
    assert row.priority == 7
