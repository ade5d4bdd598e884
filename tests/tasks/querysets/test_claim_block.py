"""The block of a claim: what becomes of its tasks leaves it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from leasing.exceptions import LeaseLost
from leasing.holding.keeper import keeper
from leasing.testing import ManualKeeper
from tasks.exceptions import NotSerializable
from tasks.models import Task, TaskStatus
from tests.factories import make_task, make_tasks
from tests.leasing.support import just_before_the_update
from tests.tasks.support import refusals, row_of, take_over

pytestmark = pytest.mark.django_db

#: What a holder may end a task with.
ENDS: dict[str, Callable[[Task], Any]] = {
    "complete": lambda task: Task.objects.complete(task, 1),
    "fail": lambda task: Task.objects.fail(task, "no paper"),
    "give back": lambda task: Task.objects.give_back(task, "no paper"),
    "snooze": lambda task: Task.objects.snooze(task, 60),
    "release": lambda task: Task.objects.release(task),
    "cancel": lambda task: Task.objects.accept_cancel(task),
    "complete many": lambda task: Task.objects.complete_many([(task, 1)]),
    "fail many": lambda task: Task.objects.fail_many([(task, "no paper")]),
    "give back many": lambda task: Task.objects.give_back_many([task], "no paper"),
}

every_end = pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))


@every_end
def test_a_task_that_its_holder_ends_leaves_the_block(
    end: Callable[[Task], Any], clocks: ManualKeeper
) -> None:
    make_tasks(2)
    with Task.objects.claim("ann", limit=2) as claimed:
        end(claimed[0])
        ended = row_of(claimed[0])
        clocks.advance(60)
        claimed.ensure()
        assert not any(hold.is_lost for hold in claimed.holds)

    assert row_of(claimed[0]) == ended
    assert not any(refusals(claimed[0]))
    assert row_of(claimed[1])["status"] == TaskStatus.READY


@every_end
def test_a_renewal_under_way_takes_no_end_for_a_loss(end: Callable[[Task], Any]) -> None:
    make_task()
    with Task.objects.claim("ann") as claimed:
        (hold,) = claimed.holds
        with just_before_the_update(lambda: hold.mark_lost("it was already processed")):
            end(claimed[0])
        assert not hold.is_lost


def test_a_task_leaves_the_block_by_another_instance_of_its_row(clocks: ManualKeeper) -> None:
    make_task()
    with Task.objects.claim("ann") as claimed:
        Task.objects.complete(Task.objects.get(pk=claimed[0].pk))
        clocks.advance(60)

    assert Task.objects.succeeded().exists()


def test_a_task_whose_end_is_refused_stays_in_the_block(clocks: ManualKeeper) -> None:
    make_tasks(2)
    with Task.objects.claim("ann", limit=2) as claimed:
        first, second = claimed
        with pytest.raises(NotSerializable):
            Task.objects.complete(first, object())
        done, refused = Task.objects.complete_many([(first, object()), (second, 1)])
        assert done == [second]
        clocks.advance(60)
        assert [hold.valid for hold in claimed.holds] == [True, False]

    assert Task.objects.get(pk=first.pk).status == TaskStatus.READY


def test_a_task_that_was_lost_is_still_told_at_the_end(clocks: ManualKeeper) -> None:
    make_task()
    with pytest.raises(LeaseLost), Task.objects.claim("ann") as claimed:
        take_over(claimed[0])
        with pytest.raises(LeaseLost):
            Task.objects.complete(claimed[0])
        clocks.advance(60)


@pytest.mark.django_db(transaction=True)
def test_an_end_that_is_rolled_back_leaves_the_task_in_the_block() -> None:
    make_task()
    with Task.objects.claim("ann") as claimed:
        (hold,) = claimed.holds
        with suppress(KeyError), transaction.atomic():
            Task.objects.complete(claimed[0], 1)
            raise KeyError
        assert hold in keeper.holds
        claimed.ensure()

        with transaction.atomic():
            Task.objects.give_back(Task.objects.get(), "no paper")
            assert hold.valid, "it may still be rolled back"
        assert hold not in keeper.holds

    assert Task.objects.ready().exists()


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_ends_its_tasks_inside_the_block() -> None:
    async def story() -> None:
        claim = await sync_to_async(Task.objects.claim)("ann")
        async with claim as claimed:
            await sync_to_async(Task.objects.complete)(claimed[0])

    make_task()
    async_to_sync(story)()

    assert Task.objects.succeeded().exists()
