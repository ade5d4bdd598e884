"""Handing many tasks back at once: each as one would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasing.exceptions import LeaseLost
from tasks.models import Task, TaskStatus
from tasks.querysets import ends
from tests.factories import claimed
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import just_before_the_update
from tests.tasks.support import (
    Reported,
    attempts,
    copy_of,
    refusals,
    row_of,
    running,
    take_back,
    take_over,
)

pytestmark = pytest.mark.django_db

WHY = "it waited for a slot"
#: What no two tasks have alike.
OWN = {
    *("id", "grant_id", "fencing_token", "unique_key", "enqueued_key"),
    *("created_at", "scheduled_at"),
}


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tasks whose workers were woken."""
    found: list[int] = []

    def notify(using: str, tasks: list[Task]) -> None:
        found.extend(task.pk for task in tasks)

    monkeypatch.setattr(ends, "notify", notify)
    return found


@pytest.mark.parametrize("unique_for", ["waiting", "running", "finished"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_each_is_afterwards_what_one_alone_would_be(
    unique_for: str, cancelled: bool, database_clock: DatabaseClock
) -> None:
    tasks = [
        Task.objects.enqueue("jobs.echo", {}, unique_key=f"key:{n}", unique_for=unique_for)
        for n in range(3)
    ]
    alone, *together = [claimed(task, "ann") for task in tasks]
    if cancelled:
        Task.objects.all().cancel(by="olga")
    database_clock.advance(3)

    Task.objects.give_back(alone, WHY)
    given, refused = Task.objects.give_back_many(together, WHY)

    assert (given, refused) == (together, [])
    for task in together:
        same = {column: value for column, value in row_of(task).items() if column not in OWN}
        assert same == {column: row_of(alone)[column] for column in same}
        assert bool(task.unique_key) == bool(alone.unique_key)
        assert attempts(task) == attempts(alone) == [(1, "returned")]
        assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}


def test_those_whose_term_is_over_are_refused_alone_and_others_hear(
    reported: Reported, notified: list[int]
) -> None:
    first, sold, asked, last = running(4)
    take_over(copy_of(sold))
    Task.objects.filter(pk=asked.pk).cancel(by="olga")
    reported.clear()

    given, ((refused, error),) = Task.objects.give_back_many([first, sold, asked, last], WHY)

    assert given == [first, asked, last]
    assert refused is sold and isinstance(error, LeaseLost)
    assert (row_of(sold)["status"], row_of(sold)["holder"]) == (TaskStatus.RUNNING, "thief")
    assert (row_of(sold)["attempts"], attempts(sold)) == (1, [])
    assert [(name, key) for name, key, _ in reported][:3] == [
        ("returned", first.pk),
        ("cancelled", asked.pk),
        ("returned", last.pk),
    ]
    assert notified == [first.pk, last.pk]


@pytest.mark.parametrize("change", [take_over, take_back])
def test_what_came_between_lock_and_update_is_refused(change: Callable[[Task], object]) -> None:
    """As could be without row locks."""
    task, neighbour = running(2)
    left: dict[str, Any] = {}

    def meanwhile() -> None:
        change(copy_of(task))
        left.update(row_of(task))

    with just_before_the_update(meanwhile):
        given, ((refused, _),) = Task.objects.give_back_many([task, neighbour], WHY)

    assert (given, refused) == ([neighbour], task)
    assert row_of(task) == left
    assert refusals(task) == []


def test_the_history_keeps_of_each_the_latest_return_for_one_reason() -> None:
    again, other = running(2)
    Task.objects.give_back(again, "its worker was stopped")
    Task.objects.give_back(claimed(again, "ann"), WHY)
    Task.objects.give_back(other, WHY)
    again = claimed(again, "bob")

    Task.objects.give_back_many([again], WHY)

    kept = again.attempt_set.order_by("id").values_list("holder", "error")
    assert [error for _, error in kept] == ["its worker was stopped", WHY]
    assert kept[1][0] == "bob"
    assert attempts(other) == [(1, "returned")]
