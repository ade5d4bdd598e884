"""Issues of the overview that name what runs, fails or dies in an unusual way."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.db.models import F
from django.test import Client

from leasing.functions import after, database_now
from tasks.models import Queue, Task, TaskAttempt, Worker
from tests.factories import claimed, make_task, make_tasks, make_worker
from tests.fixtures import client_with
from tests.leasing.support import expire
from tests.pages import Page, get
from tests.tasks.support import make_due, sample_handlers

pytestmark = pytest.mark.django_db

OVERVIEW = "/ops/"

viewer = client_with("leasing_tasks.view_task", "leasing_tasks.view_worker")


def now() -> datetime:
    return database_now("default")


def needs(page: Page) -> dict[str, str]:
    """The text of each issue by its code, in their order."""
    return {each["data-code"]: each.text for each in page.all(".needs li")}


def running_for(seconds: int, **options: str) -> Task:
    task = make_task(state="running", holder="ann", ttl=900)
    acquired_at = after(-timedelta(seconds=seconds))
    Task.objects.filter(pk=task.pk).update(acquired_at=acquired_at)
    return task


@pytest.mark.usefixtures("database_clock")
def test_a_task_that_runs_for_much_longer_than_usual_is_an_issue(viewer: Client) -> None:
    make_worker(name="ann")
    running_for(30)
    assert needs(get(viewer, OVERVIEW)) == {}  # nobody knows what is usual

    sample_handlers(now(), 30, sample__sleep=(0, {0.3: 90, 0.6: 10}))
    task = running_for(109)
    running_for(5)
    page = get(viewer, OVERVIEW)

    text = needs(page)["running_long"]
    ran = f"task:{task.pk} has been running for 1 min 49 s"
    assert f"{ran}; sample.sleep usually takes 0.3 s (p95 0.6 s)." in text
    assert "1 more task of sample.sleep run" in text
    assert f"/ops/tasks/{task.pk}/" in page.one(".needs li").links


@pytest.mark.parametrize(("done", "is_told"), [(1, True), (9, True), (10, False)])
def test_attempts_that_fail_with_one_error_are_an_issue_while_retries_go_on(
    viewer: Client, done: int, is_told: bool
) -> None:
    make_worker()
    for number, task in enumerate(make_tasks(9)):
        Task.objects.fail(claimed(task, "ann"), RuntimeError(f"order {number}: 503"))
    for task in make_tasks(done):
        Task.objects.complete(claimed(task, "ann"), {})
    Task.objects.filter(status="ready").update(scheduled_at=after(timedelta(minutes=5)))
    make_tasks(2)
    page = get(viewer, OVERVIEW)

    assert ("failing" in needs(page)) == is_told
    if is_told:
        text = needs(page)["failing"]
        attempts = f"9 of {9 + done} attempts of sample.sleep in the last minute"
        assert f"{attempts} failed with the same error." in text
        assert "RuntimeError: order 8: 503" in text
        last = Task.objects.filter(attempts=1, status="ready").latest("pk")
        runbook = "/ops/runbook/failed-tasks/"
        assert page.one(".needs li").links == [f"/ops/tasks/{last.pk}/", runbook, "/ops/queues/"]
        others = "none of its tasks starts then, of any handler; 2 tasks are waiting."
        assert f"pause the queue default: {others}" in text


@pytest.mark.parametrize("change", ["few", "a minute ago", "other errors"])
def test_a_few_or_old_or_different_failures_are_none(viewer: Client, change: str) -> None:
    make_worker()
    for number, task in enumerate(make_tasks(4 if change == "few" else 9)):
        error = "x" * number if change == "other errors" else "503"
        Task.objects.fail(claimed(task, "ann"), RuntimeError(error))
    if change == "a minute ago":
        TaskAttempt._base_manager.update(ended_at=F("ended_at") - timedelta(seconds=61))

    assert "failing" not in needs(get(viewer, OVERVIEW))


def test_failures_are_grouped_by_handler_and_error_the_latest_first(viewer: Client) -> None:
    make_worker()
    for hours, error in ((4, "503 for order 1"), (8, "no such file."), (3, "503 for order 2")):
        task = make_task(max_attempts=1)
        Task.objects.fail(claimed(task, "ann"), RuntimeError(error))
        Task.objects.filter(pk=task.pk).update(processed_at=after(-timedelta(hours=hours)))
    lost = make_task(max_attempts=1)
    expire(claimed(lost, "ann"))
    Task.objects.recover()

    (text,) = needs(get(viewer, OVERVIEW)).values()

    assert "4 tasks have failed." in text
    first, *parts = (part.strip() for part in text.partition("failed.")[2].split("·"))
    assert first.startswith("Failed tasks Runbook 1 sample.sleep: lost with its worker, ")
    assert parts[:2] == [
        "2 sample.sleep: RuntimeError: 503 for order 2, the last 3 h ago",
        "1 sample.sleep: RuntimeError: no such file, 8 h ago",
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_failed_compensations_are_an_issue_of_their_own_before_other_failures(
    viewer: Client, count: int
) -> None:
    make_worker()
    make_task(state="failed")
    undoing = make_tasks(count, max_attempts=1)
    for task in undoing:
        Task.objects.fail(claimed(task, "ann"), OSError("no answer"))
        Task.objects.filter(pk=task.pk).update(compensation="", name="trip.unbook")

    page = get(viewer, OVERVIEW)

    first, *others = needs(page).items()
    assert first[0] == "undo_failed"
    have = "1 compensation has failed" if count == 1 else "2 compensations have failed"
    assert f"{have}: what was to be undone is undone in part, or not at all." in first[1]
    the_last = ", the last " if count > 1 else ", "
    assert f"{count} trip.unbook: OSError: no answer{the_last}" in first[1]
    of_many = "/ops/tasks/?state=failed&name=trip.unbook"
    place = f"/ops/tasks/{undoing[0].pk}/" if count == 1 else of_many
    links = page.all(".needs li")[0].links
    assert {place, "/ops/runbook/compensation-failed/"} <= set(links)
    assert [code for code, _ in others] == ["failed"]
    assert "1 other task has failed." in others[0][1]
    assert "trip.unbook" not in others[0][1]

    Task.objects.exclude(compensation="").delete()
    assert list(needs(get(viewer, OVERVIEW))) == ["undo_failed"]
    Task.objects.discard()
    assert needs(get(viewer, OVERVIEW)) == {}


@pytest.mark.parametrize(
    ("age", "order"), [(3_500, ["failed", "paused"]), (3_700, ["paused", "failed"])]
)
def test_a_paused_queue_comes_before_an_old_failure(
    viewer: Client, age: int, order: list[str]
) -> None:
    make_worker()
    make_task(state="failed")
    Task.objects.update(processed_at=after(-timedelta(seconds=age)))
    make_task()
    Queue.objects.pause("default", by="olga", reason="x")

    assert list(needs(get(viewer, OVERVIEW))) == order


def ended(worker: Worker, seconds_ago: int, how: str = "was killed by signal 9") -> list[object]:
    at = (now() - timedelta(seconds=seconds_ago)).isoformat()
    return [1, at, at, how]


def test_workers_that_die_again_and_again_are_named_with_the_tasks_that_they_ran(
    viewer: Client,
) -> None:
    for number in (1, 2):
        worker = make_worker(
            name=f"shop:{number}:0a1b2c3d", fleet="shop", fleet_index=number, fleet_restarts=2
        )
        worker.ends = [ended(worker, 60), ended(worker, 120), ended(worker, 601)]
        worker.ends += [ended(worker, 30, "stopped cleanly")]
        worker.save()
    killer, other = make_tasks(2)
    for name in ("a", "b", "c", "d"):
        tasks = (killer, other) if name == "a" else (killer,)
        for task in tasks:
            make_due(task)
            expire(claimed(task, name))
        Task.objects.recover()
    page = get(viewer, OVERVIEW)

    assert next(iter(needs(page))) == "workers_die"
    text = needs(page)["workers_die"]
    replaced = r"Workers shop:1 and shop:2 were replaced 4 times in 2 min( \d+ s)? without"
    assert re.search(replaced, text)
    assert f"Running each time: task:{killer.pk} sample.sleep. It may be the cause" in text
    assert f"task:{other.pk}" not in text
    assert f"/ops/tasks/{killer.pk}/" in page.one(".needs li").links


def test_a_silent_worker_that_another_of_its_label_has_succeeded_has_died(viewer: Client) -> None:
    for digits, state in (("0a1b2c3d", "late"), ("1a1b2c3d", "gone"), ("2a1b2c3d", "live")):
        make_worker(name=f"shop:{digits}", state=state)
    make_worker(name="shop:3a1b2c3d", hostname="elsewhere", state="late")

    found = needs(get(viewer, OVERVIEW))

    assert list(found) == ["workers_die", "late"]
    assert "Worker shop was replaced 2 times in" in found["workers_die"]
    assert "Worker shop:3a1b2c3d is late" in found["late"]
    assert "4 of 8 threads are missing" in found["late"]


def test_one_death_is_no_issue(viewer: Client) -> None:
    worker = make_worker()
    worker.ends = [ended(worker, 60)]
    worker.save()

    assert needs(get(viewer, OVERVIEW)) == {}


def test_a_silent_worker_beside_one_of_its_label_is_late_unless_several_died(
    viewer: Client,
) -> None:
    make_worker(name="shop:0a1b2c3d", state="late")
    make_worker(name="shop:1a1b2c3d")
    make_worker(name="shop:2a1b2c3d")

    assert list(needs(get(viewer, OVERVIEW))) == ["late"]


@pytest.mark.parametrize(("waiting", "tone"), [(1, "warn"), (0, "info")])
def test_a_late_worker_says_what_stands_still_and_which_process_may_be_frozen(
    viewer: Client, waiting: int, tone: str
) -> None:
    make_worker(name="ann", state="late", pid=27177, hostname="vm")
    make_worker(name="bea")
    for _ in range(2):
        make_task(state="running", holder="ann")
    make_tasks(waiting)
    page = get(viewer, OVERVIEW)

    text = needs(page)["late"]
    assert "Worker ann is late and holds 2 tasks that stand still, until " in text
    assert "4 of 8 threads are missing. If process 27177 on vm still exists, it is frozen" in text
    assert page.one(".needs li .tinted").tone == tone


def test_a_worker_that_is_still_late_once_its_tasks_were_taken_back_is_a_warning(
    viewer: Client,
) -> None:
    make_worker(name="ann", state="late", pid=27177, hostname="vm")
    make_worker(name="bea")
    for name in ("ann", "bea"):
        expire(make_task(state="running", holder=name))
    Task.objects.recover()
    page = get(viewer, OVERVIEW)

    assert "Worker ann is late; 1 task was taken back." in needs(page)["late"]
    assert "4 of 8 threads are missing. If process 27177 on vm still" in needs(page)["late"]
    assert page.one(".needs li .tinted").tone == "warn"
