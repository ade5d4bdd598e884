"""Seams between features, each of which does well alone and could forget the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from tasks import notifier, signals
from tasks.dashboard.badges import ATTEMPT_BADGES
from tasks.maintenance import recovery
from tasks.models import AttemptOutcome, Queue, Schedule, Task
from tasks.registry import handler
from tasks.testing import inline
from tasks.worker.process import Until
from tests.factories import make_task, make_tasks
from tests.leasing.support import expire
from tests.limits import Limits
from tests.processes import wait_for
from tests.tasks.support import Handlers, Reported, around, attempt, names_of, row_of
from tests.tasks.workers import PATIENCE, ended, working

pytestmark = pytest.mark.django_db
LIVE = pytest.mark.django_db(transaction=True)


# Pages


def test_every_outcome_of_an_attempt_has_a_sign() -> None:
    assert set(ATTEMPT_BADGES) == set(AttemptOutcome)


def test_a_schedule_whose_data_does_not_fit_is_refused_and_harms_no_page(
    admin_client: Client, handlers: Handlers
) -> None:
    handler("limited", concurrency_key="a:{account}")(lambda ctx, account: None)
    schedule = Schedule(name="s", task_name="limited", every=timedelta(hours=1))
    with pytest.raises(Exception, match="account"):
        schedule.full_clean()

    schedule.save()
    answer = admin_client.post(
        reverse("leasing_tasks:schedule_run", args=[schedule.pk]), follow=True
    )

    assert answer.status_code == 200
    assert "Nothing enqueued" in answer.content.decode()


# Recovery


def test_a_schedule_that_cannot_be_read_keeps_recovery_from_nothing_else() -> None:
    Schedule.objects.create(name="bad", task_name="sample.sleep", cron="nonsense")
    task = make_task()
    Task.objects.filter(pk=task.pk).update(cancel_requested_at=task.created_at)

    assert {finding.kind for finding in recovery.examine().findings} >= {
        "unplanned",
        "unseen_cancel",
    }
    assert row_of(task)["status"] == "cancelled"


def test_a_cancellation_that_recovery_completes_is_told(reported: Reported) -> None:
    task = make_task()
    Task.objects.filter(pk=task.pk).update(cancel_requested_at=task.created_at)

    recovery.examine()

    assert "cancelled" in names_of(reported)


# Cancelling


def test_who_cancelled_and_why_outlives_the_loss_of_the_task() -> None:
    task = make_task(state="running")
    Task.objects.filter(pk=task.pk).cancel(by="al", reason="wrong month")
    expire(task)
    Task.objects.recover()

    assert row_of(task)["status"] == "cancelled"
    assert row_of(task)["last_error"] == "cancelled by al: wrong month"
    assert "did not renew" in attempt(task).error


def test_the_last_attempt_of_a_task_that_was_to_be_cancelled_ends_it_as_cancelled() -> None:
    task = make_task(state="running", max_attempts=1)
    Task.objects.filter(pk=task.pk).cancel(by="al")
    Task.objects.fail(task, ValueError("no luck"))

    assert row_of(task)["status"] == "cancelled"


def test_many_are_rescheduled_in_parts_and_each_once(limits: Limits) -> None:
    """Afterwards they meet the condition as before: only their keys tell which were done."""
    limits(bulk_batch=2)
    tasks = make_tasks(5)
    told: list[int] = []

    def hear(task: Task, **_: object) -> None:
        told.append(task.pk)
        if len(told) > len(tasks):
            pytest.fail("it begins again")  # and would for ever

    signals.rescheduled.connect(hear)
    try:
        assert Task.objects.reschedule(scheduled_at=timezone.now()) == 5
    finally:
        signals.rescheduled.disconnect(hear)

    assert told == [task.pk for task in tasks]


# Wake-ups


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    heard: list[str] = []
    monkeypatch.setattr(notifier.limiter, "is_due", lambda *asked: True)
    monkeypatch.setattr(notifier.limiter, "notify", lambda using, message: heard.append(message))
    return heard


def test_a_queue_that_is_resumed_wakes_its_workers(notified: list[str]) -> None:
    Queue.objects.pause("default")
    Queue.objects.resume("default")

    assert notified == ["queue 0 default"]


def test_a_task_that_is_replaced_wakes_workers(notified: list[str]) -> None:
    Task.objects.enqueue("jobs.echo", unique_key="k", delay=3600)
    del notified[:]
    Task.objects.enqueue("jobs.echo", unique_key="k", on_duplicate="replace")

    assert notified == ["queue 0 default"]


def test_a_replaced_task_is_no_longer_what_its_client_asked_for() -> None:
    first = Task.objects.enqueue("jobs.echo", {"n": 7}, unique_key="k", idempotency_key="r1")
    Task.objects.enqueue("jobs.echo", {"n": 8}, unique_key="k", on_duplicate="replace")

    again = Task.objects.enqueue("jobs.echo", {"n": 7}, unique_key="k", idempotency_key="r1")

    assert again.pk == first.pk
    assert again.is_duplicate


# Testing


def test_inline_runs_what_waited_for_the_commit(
    handlers: Handlers, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    ran: list[int] = []
    handlers["note"] = lambda ctx, n: ran.append(n)

    with inline(), django_capture_on_commit_callbacks(execute=True):
        Task.objects.enqueue_on_commit("note", {"n": 1})
        assert ran == []

    assert ran == [1]


# Timeouts


@LIVE
@pytest.mark.parametrize("options", [{"max_tasks": 1}, {"until": Until.DRAINED}])
def test_a_thread_that_goes_on_after_its_timeout_keeps_no_worker_from_its_end(
    handlers: Handlers, settings: Settings, options: dict[str, Any]
) -> None:
    settings.TASK_QUEUE = {"POLL_EVERY": 0.05, "SWEEP_EVERY": 0.1}
    go_on = threading.Event()
    handlers["deaf"] = lambda ctx: go_on.wait(PATIENCE)
    task = Task.objects.enqueue("deaf", timeout=0.1, max_attempts=1)

    with working(threads=2, stop_timeout=0.1, **options) as worker:
        wait_for(ended(worker))
        assert row_of(task)["status"] == "failed"
        go_on.set()
    assert attempt(task).refused_verb != "give back"


@LIVE
def test_a_stop_lets_a_result_be_stored_that_is_on_its_way(handlers: Handlers) -> None:
    storing, go_on = threading.Event(), threading.Event()

    def slow(complete: Callable[..., Any], *args: Any) -> Any:
        storing.set()
        go_on.wait(0.3)
        return complete(*args)

    handlers["quick"] = lambda ctx: "well"
    task = Task.objects.enqueue("quick")

    with around("complete_claimed", slow), working(threads=1, stop_timeout=0) as worker:
        assert storing.wait(PATIENCE)
        worker.stop()
        wait_for(ended(worker))

    assert row_of(task)["task_output"] == "well"
