"""An operator sets tasks that have ended ready again: with the unique key they were enqueued with,
or not at all while another has it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError

from tasks.exceptions import GiveUp
from tasks.models import Task
from tests.factories import claimed, make_task
from tests.leasing.support import just_before_the_update
from tests.tasks.support import Reported, names_of, row_of

pytestmark = pytest.mark.django_db

ECHO = "jobs.echo"
HOUR = timedelta(hours=1)


def rows(*tasks: Task) -> Any:
    return Task.objects.filter(pk__in=[task.pk for task in tasks])


def again(key: str = "k") -> Task:
    return Task.objects.enqueue(ECHO, unique_key=key)


def failed(key: str | None = "k", **options: Any) -> Task:
    return make_task(state="failed", unique_key=key, **options)


def ended(how: str, **options: Any) -> Task:
    """A task with the key "k" that has ended, in its first attempt or before."""
    task = make_task(unique_key="k", **options)
    if how == "cancelled":
        rows(task).cancel()
    elif how == "given back and cancelled":
        Task.objects.give_back(claimed(task, "ann"), "stopped")
        rows(task).cancel()
    else:
        Task.objects.fail(claimed(task, "ann"), GiveUp("no hope"))
    return task


#: How a key is to last, and what ended its task: whether a retry has it again.
KEYS = {
    ("finished", "failed"): True,
    ("finished", "cancelled"): True,
    ("running", "failed"): False,  # a retry waits without it
    ("running", "cancelled"): True,
    ("running", "given back and cancelled"): True,
    ("waiting", "failed"): False,
    ("waiting", "cancelled"): True,
    ("waiting", "given back and cancelled"): False,
    (HOUR, "failed"): True,
}


@pytest.mark.parametrize(("unique_for", "how"), KEYS, ids=str)
def test_a_task_that_is_retried_has_its_key_for_as_long_as_was_asked(
    unique_for: Any, how: str
) -> None:
    task = ended(how, unique_for=unique_for)

    assert rows(task).retry() == 1

    has_it = KEYS[unique_for, how]
    assert row_of(task)["unique_key"] == ("k" if has_it else None)
    assert again().is_duplicate == has_it


def test_its_key_is_free_once_it_has_ended_again() -> None:
    task = ended("failed")
    rows(task).retry()

    Task.objects.complete(claimed(task, "ann"))

    assert not again().is_duplicate


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_task_whose_key_another_has_by_now_is_not_retried(how: str, reported: Reported) -> None:
    task = ended(how)
    other = again()
    free = failed("another")
    before = row_of(task)
    reported.clear()

    assert rows(task, other, free).retry() == 1

    assert row_of(task) == before
    assert [key for _, key, _ in reported] == [free.pk]
    assert row_of(other)["unique_key"] == "k"

    rows(other).cancel()
    assert rows(task).retry() == 1


@pytest.mark.parametrize(("unique_for", "how"), [("running", "failed"), ("waiting", "failed")])
def test_one_that_waits_without_its_key_is_retried_beside_who_has_it(
    unique_for: str, how: str
) -> None:
    task = ended(how, unique_for=unique_for)
    again()

    assert rows(task).retry() == 1


def test_no_other_task_is_retried() -> None:
    task, other = failed(None), failed(None)

    assert rows(task).retry() == 1

    assert [row_of(each)["status"] for each in (task, other)] == ["ready", "failed"]


def test_of_several_of_one_key_one_is_retried() -> None:
    first = failed()
    second, third = failed(), failed("another")

    assert Task.objects.retry() == 2

    states = [row_of(task)["status"] for task in (first, second, third)]
    assert states == ["ready", "failed", "ready"]


def test_a_key_that_is_taken_just_before_is_not_taken_back(reported: Reported) -> None:
    task, free = failed(), failed("another")
    reported.clear()

    with just_before_the_update(again):
        assert Task.objects.retry() == 1

    assert (row_of(task)["status"], row_of(free)["status"]) == ("failed", "ready")
    assert names_of(reported).count("retried") == 1


def test_what_the_database_refuses_again_and_again_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = [failed("one"), failed("two")]

    def refused(rows: Any, **columns: Any) -> int:
        raise IntegrityError("a constraint of somebody's own")

    monkeypatch.setattr(type(Task.objects.all()), "update", refused)

    assert Task.objects.retry() == 0
    assert [row_of(task)["status"] for task in tasks] == ["failed"] * 2
