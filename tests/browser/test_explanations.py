"""Check the overview, and the explanation of each task."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.functions import after
from tasks.dashboard import overview
from tasks.generator import start_generator
from tasks.models import GeneratorDesiredState, Queue, Schedule, Task
from tasks.sample import SLEEP
from tests.browser import harbour
from tests.browser.conftest import Figure
from tests.factories import make_task, make_worker
from tests.tasks.diagnosis.test_diagnosis import SITUATIONS

ANSWERS = ["why", "who", "until", "next", "do"]


def _stuck() -> None:
    make_worker(sweeps=False)
    make_task(state="stuck")


def _nobody_works() -> None:
    make_task()


def _unserved() -> None:
    make_worker(queues=["default"])
    make_task(queue="reports")


def _vanished() -> None:
    make_worker()
    make_worker(name="vera", state="gone")


def _late() -> None:
    make_worker(name="vera", state="late")


def _failed() -> None:
    make_worker()
    make_task(state="failed")


def _paused() -> None:
    make_worker()
    Queue.objects.pause("default", by="olga", reason="the server is down")
    make_task()


def _waits_long() -> None:
    make_worker()
    task = make_task()
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(minutes=-20)))


def _overdue() -> None:
    make_worker()
    due = after(timedelta(hours=-1))
    Schedule.objects.create(name="nightly", task_name=SLEEP, cron="0 3 * * *")
    Schedule.objects.update(next_at=due)


def _unheard() -> None:
    make_worker()
    start_generator(by="olga")
    GeneratorDesiredState.objects.update(changed_at=after(timedelta(minutes=-2)))


PROBLEMS: dict[str, Callable[[], None]] = {
    "no_recoverer": _stuck,
    "no_worker": _nobody_works,
    "unserved": _unserved,
    "gone": _vanished,
    "late": _late,
    "failed": _failed,
    "paused": _paused,
    "waits_long": _waits_long,
    "overdue_schedule": _overdue,
    "start_unheard": _unheard,
}


def test_04_the_overview_names_every_injected_problem_and_says_so_when_there_is_none(
    page: Page, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = page.locator("[data-live=health]")
    harbour.all_is_well()
    page.goto(reverse("leasing_tasks:overview"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("No issues.")
    assert page.title() == "Overview"
    for code, inject in PROBLEMS.items():
        harbour.clear()
        inject()
        page.reload()
        expect(health.locator("[data-code]")).to_have_count(1)
        expect(health.locator(f"[data-code={code}]")).to_be_visible()
        assert page.title() == "(1) Overview"
    harbour.clear()
    harbour.all_is_well()
    with monkeypatch.context() as broken:
        broken.setattr(overview, "read_queues", lambda *args: 1 / 0)
        page.reload()
        expect(health.locator("[data-code=unread]")).to_contain_text("queues")
        expect(page.get_by_text("The queues could not be read.")).to_be_visible()
        expect(page.locator("[data-live=workers] tbody tr")).to_have_count(1)
    for inject in (_stuck, _failed, _vanished):
        inject()
    page.reload()
    expect(health.locator("[data-code]")).to_have_count(3)
    figure(f"{len(PROBLEMS) + 1} problems one by one, and three at once")


def test_12_every_diagnosis_has_a_page_with_its_five_answers(page: Page, figure: Figure) -> None:
    for code, situation in SITUATIONS.items():
        harbour.clear()
        task = situation()
        page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
        told = page.evaluate(
            """() => [...document.querySelectorAll("dl.answers > [data-answer]")].map(
            (each) => [each.dataset.answer, each.querySelector("dd").innerText])"""
        )
        answers = dict(told)
        assert list(answers) == ANSWERS, code
        assert all(each.strip() for each in answers.values()), code
    figure(f"{len(SITUATIONS)} codes")
