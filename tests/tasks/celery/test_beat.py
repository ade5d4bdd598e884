"""Housekeeping as entries of Celery's beat."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from pytest_django import Settings

from leasing.celery import LeasedTask, is_skipped
from leasing.functions import DbNow, after
from leasing.testing import hold_elsewhere
from tasks.celery import beat
from tasks.maintenance import scheduler
from tasks.models import Schedule, Task, TaskStatus
from tests.factories import make_task

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def app(own_declarations: None) -> Iterator[Celery]:
    """An app of a user's, for the length of a test."""
    beat._declare.cache_clear()
    with Celery("shop", broker="memory://") as app:
        yield app
    beat._declare.cache_clear()


def run(name: str) -> Any:
    """Return the result of the task of the entry called so."""
    return getattr(beat, name).apply().get()


def test_every_entry_names_a_task_that_is_a_singleton_and_skips(app: Celery) -> None:
    entries = beat.housekeeping()

    assert len(entries) == 5
    for name, entry in entries.items():
        task = app.tasks[entry["task"]]
        assert (name, task.when_held) == (task.name, "skip")
        assert isinstance(task, LeasedTask)
        assert entry["options"]["expires"] == entry["schedule"]
    assert len({app.tasks[name].resource for name in entries}) == 5


def test_entries_come_as_often_as_the_settings_say(settings: Settings) -> None:
    settings.TASK_QUEUE = {"SWEEP_EVERY": 7.0, "PRUNE_EVERY": None}

    entries = beat.housekeeping()

    assert entries["tasks.celery.beat.sweep"]["schedule"] == 7.0
    assert "tasks.celery.beat.prune" not in entries


def test_sweeping_takes_back_what_expired() -> None:
    task = make_task(state="stuck")

    assert run("sweep") == 1

    assert Task.objects.get(pk=task.pk).status == TaskStatus.READY


def test_examining_says_what_was_found() -> None:
    make_task(state="stuck")

    report = run("examine")

    assert report["findings"][0]["kind"] == "expired"


def test_children_that_were_left_open_are_cancelled() -> None:
    child = make_task(parent=make_task(state="cancelled"))

    assert [run("cancel_left_behind"), run("cancel_left_behind")] == [1, 0]

    assert Task.objects.get(pk=child.pk).status == TaskStatus.CANCELLED


def test_pruning_deletes_what_is_old() -> None:
    old = make_task(state="succeeded")
    Task.objects.filter(pk=old.pk).update(processed_at=after(timedelta(days=-10)))

    pruned = run("prune")

    assert pruned["succeeded"] == 1
    assert pruned.keys() >= {"slots", "leases", "events", "once_keys", "audit_entries"}
    assert not Task.objects.filter(pk=old.pk).exists()


def test_schedules_are_served_and_declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Schedule.objects.create(name="hourly", task_name="jobs.echo", cron="0 * * * *", next_at=DbNow())
    declared: list[int] = []
    monkeypatch.setattr(scheduler, "declare_all", lambda: declared.append(1))

    assert run("serve_schedules") == 1
    assert run("serve_schedules") == 0

    assert len(declared) == 1


def test_what_runs_elsewhere_is_left_to_it() -> None:
    with hold_elsewhere("leasing_tasks:beat:sweep"):
        assert is_skipped(run("sweep"))
