"""Renewing the lease of a running task, one by one and many at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from leasing.exceptions import LeaseInTransaction, LeaseLost
from tasks.models import Task, TaskStatus
from tests.factories import grant_id_of, make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire
from tests.tasks.support import Reported, end_well, row_of, take_back, take_over

pytestmark = pytest.mark.django_db


def test_a_heartbeat_moves_the_deadline_to_the_ttl_from_now(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(state="running", ttl=30)
    before = row_of(task)
    database_clock.advance(10)

    answer = Task.objects.heartbeat(task)

    assert answer is task
    assert task.expires_at == before["expires_at"] + timedelta(seconds=10)
    assert (task.renewals, task.renewed_at) == (1, database_clock.now)
    changed = {column for column, value in row_of(task).items() if before[column] != value}
    assert changed == {"expires_at", "renewed_at", "renewals"}


def test_a_heartbeat_never_brings_the_deadline_nearer(database_clock: DatabaseClock) -> None:
    task = make_task(state="running", ttl=30)
    deadline = task.expires_at
    database_clock.advance(-5)

    Task.objects.heartbeat(task)

    assert task.expires_at == deadline


def test_a_heartbeat_at_the_deadline_comes_too_late(database_clock: DatabaseClock) -> None:
    task = make_task(state="running", ttl=30)
    database_clock.advance(30 - 0.000001)
    Task.objects.heartbeat(task)

    database_clock.now = task.expires_at
    with pytest.raises(LeaseLost, match="it expired at"):
        Task.objects.heartbeat(task)

    assert row_of(task)["status"] == TaskStatus.READY
    attempt = task.attempt_set.get()
    assert (attempt.outcome, attempt.refused_verb) == ("lost", "heartbeat")


def test_a_heartbeat_is_told(reported: Reported) -> None:
    task = make_task(state="running")
    reported.clear()

    Task.objects.heartbeat(task)

    assert reported == [("renewed", task.pk, {})]


def test_a_heartbeat_inside_a_transaction_is_refused() -> None:
    task = make_task(state="running")
    before = row_of(task)

    with pytest.raises(LeaseInTransaction), transaction.atomic():
        Task.objects.heartbeat(task)

    assert row_of(task) == before


def test_of_many_only_those_still_held_are_renewed_and_the_others_told_why() -> None:
    mine, late, over, ended, back = make_tasks(5, state="running")
    gone = make_task(state="running")
    grants = {task.pk: grant_id_of(task) for task in (mine, late, over, ended, back, gone)}
    expire(late)
    take_over(over)
    end_well(ended)
    take_back(back)
    Task.objects.filter(pk=gone.pk).delete()
    others = (late, over, ended, back)
    before = [row_of(task) for task in others]

    answer = Task.objects.all().renew_many(grants)

    (renewal,) = answer.renewed.values()
    assert set(answer.renewed) == {mine.pk}
    assert renewal.expires_at == row_of(mine)["expires_at"]
    assert 0 < renewal.remaining <= 30
    assert row_of(mine)["renewals"] == 1
    assert [row_of(task) for task in others] == before
    reasons = {key: reason.split(" 20")[0] for key, reason in answer.lost.items()}
    assert reasons == {
        late.pk: "it expired at",
        over.pk: "thief has held it since",
        ended.pk: "it has already ended: succeeded",
        back.pk: "it was recovered and waits for another attempt",
        gone.pk: "its row is gone",
    }
