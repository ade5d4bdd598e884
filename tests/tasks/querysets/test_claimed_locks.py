"""Locks of claims and completions of workers, and their waits."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections, transaction

from tasks.models import Task
from tests.factories import make_task, make_tasks
from tests.leasing.locks import someone_waits
from tests.leasing.support import OtherSession
from tests.processes import wait_for
from tests.tasks.support import take_over
from tests.tasks.workers import PATIENCE, states

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("on_postgresql", "unheard"),
]


def test_results_lock_their_rows_in_the_order_of_their_keys_before_they_write() -> None:
    """Or two workers could each wait for the other."""
    make_tasks(2)
    first, second = Task.objects.take("ann", limit=2)

    def complete() -> None:
        Task.objects.complete_claimed([(second, 2), (first, 1)])
        connections.close_all()

    storing = threading.Thread(target=complete)
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=first.id)
        storing.start()
        wait_for(someone_waits)
        free = Task.objects.select_for_update(skip_locked=True).filter(pk=second.id)
        assert len(free) == 1
    storing.join(PATIENCE)

    assert states() == ["succeeded"] * 2


def test_no_result_waits_for_whoever_has_taken_the_task_of_another_result() -> None:
    make_tasks(2)
    late, good = Task.objects.take("ann", limit=2)
    take_over(late.task)

    def complete() -> None:
        Task.objects.complete_claimed([(late, 1), (good, 2)])
        connections.close_all()

    storing = threading.Thread(target=complete)
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=late.id)
        storing.start()
        storing.join(PATIENCE)
        assert not storing.is_alive()
        assert states() == ["running", "succeeded"]


@pytest.mark.usefixtures("form")
def test_a_claim_passes_over_what_is_locked() -> None:
    locked, other, barred, more = make_tasks(4)
    claimed: list[list[int]] = []

    def take() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        for _ in range(2):  # from the beginning, and behind the first
            claimed.append([each.id for each in Task.objects.take("ann")])
        connections.close_all()

    taking = threading.Thread(target=take)
    with transaction.atomic():
        assert len(Task.objects.select_for_update().filter(pk__in=[locked.pk, barred.pk])) == 2
        taking.start()
        taking.join(PATIENCE)

    assert claimed == [[other.pk], [more.pk]]


@pytest.mark.usefixtures("portable")
def test_a_claim_locks_no_row_by_which_its_tasks_are_chosen(other_session: OtherSession) -> None:
    task = make_task(state="recovered")
    other_session.begin()
    other_session.run(lambda: list(task.attempt_set.select_for_update()))

    claimed = Task.objects.filter(attempt_set__number=1).claim("ann")

    other_session.commit()
    assert claimed == [task]
