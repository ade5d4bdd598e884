"""Moving what waits to another queue or time."""

from __future__ import annotations

import pytest
from django.utils import timezone

from tasks.exceptions import UnknownQueue
from tasks.models import Task
from tests.factories import make_task
from tests.leasing.support import just_before_the_update
from tests.tasks.support import Reported, grant_to, row_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("queues")]


@pytest.mark.parametrize("state", ["ready", "scheduled", "retrying", "recovered", "returned"])
def test_a_waiting_task_can_be_moved(state: str, reported: Reported) -> None:
    task = make_task(state=state)
    before = row_of(task)
    reported.clear()

    assert Task.objects.filter(pk=task.pk).reschedule(queue="mail", by="root") == 1

    assert row_of(task) == before | {"queue": "mail"}
    assert reported == [("rescheduled", task.pk, {"by": "root"})]


@pytest.mark.parametrize("state", ["running", "stuck", "succeeded", "failed", "cancelled"])
def test_what_does_not_wait_is_not_moved(state: str, reported: Reported) -> None:
    task = make_task(state=state)
    before = row_of(task)
    reported.clear()

    assert Task.objects.reschedule(queue="mail", scheduled_at=timezone.now()) == 0
    assert (row_of(task), reported) == (before, [])


def test_a_task_that_is_claimed_meanwhile_is_not_moved() -> None:
    task = make_task()

    with just_before_the_update(lambda: grant_to(task, "bob")):
        assert Task.objects.reschedule(queue="mail") == 0

    assert row_of(task)["queue"] == "default"


def test_where_to_must_be_said_and_known() -> None:
    with pytest.raises(ValueError, match="queue"):
        Task.objects.reschedule()
    with pytest.raises(ValueError, match="zone"):
        Task.objects.reschedule(scheduled_at=timezone.make_naive(timezone.now()))
    with pytest.raises(UnknownQueue):
        Task.objects.reschedule(queue="nowhere")
