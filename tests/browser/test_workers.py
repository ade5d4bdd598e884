"""Real workers that are killed, and that are asked to stop."""

from __future__ import annotations

from pathlib import Path

from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.functions import after
from tasks.models import Task, Worker
from tasks.sample import SLEEP
from tests.browser import harbour
from tests.browser.conftest import Figure
from tests.browser.live import Polls
from tests.conftest import Spawn
from tests.processes import wait_for
from tests.races.support import begins, let_go, pause, start_workers, waiting
from tests.tasks.support import row_of

BADGE = "[data-live=head] .badge"


def test_11_kill_9_of_a_worker_shows_running_late_gone_and_attempt_2_elsewhere(
    page: Page, spawn: Spawn, tmp_path: Path, figure: Figure
) -> None:
    """Time passes by moving the row's, so that each step is seen; the other worker comes last."""
    ((name, ann),) = start_workers(spawn, "ann", "--threads", "1", ttl=600).items()
    task = waiting(tmp_path)
    begins(tmp_path, 1)
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
    expect(page.locator(BADGE)).to_have_text("running")
    ann.kill()
    ann.wait()
    task.refresh_from_db()
    harbour.back(task, 0.6)
    polls.until_shown("late", "[data-live=head]")
    Worker.objects.filter(name=name).update(last_seen_at=after(-Worker.GONE_AFTER))
    polls.until_shown("is not a worker that was seen recently", "[data-live=answers]")
    workers = page.context.new_page()
    workers.goto(f"{reverse('leasing_tasks:workers')}?state=gone")
    expect(workers.locator("tr[data-key]", has_text=name).locator(".badge")).to_have_text("gone")
    harbour.back(task, 0.5)
    polls.until_shown("stuck", "[data-live=head]")
    (other,) = start_workers(spawn, "bob", "--threads", "1", ttl=600)
    begins(tmp_path, 2)
    polls.until_shown("Attempt 2 is running", "[data-live=attempts]")
    attempts = page.locator("[data-live=attempts] li")
    expect(attempts.nth(0)).to_contain_text(other)
    expect(attempts.nth(1)).to_contain_text("Attempt 1 was lost")
    expect(attempts.nth(1)).to_contain_text(name)
    tokens = [
        int(text) for text in page.locator("[data-live=attempts] .token .mono").all_inner_texts()
    ]
    assert tokens[0] > tokens[1]
    let_go(tmp_path, 2)
    polls.until_shown("succeeded", "[data-live=head]")
    figure("running, late, gone, stuck, attempt 2 at bob, done")


def test_20_a_cancelled_running_task_is_pending_and_then_confirmed(
    page: Page, spawn: Spawn, figure: Figure
) -> None:
    ann = start_workers(spawn, "ann", "--threads", "1").popitem()[1]
    task = Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": 60})
    wait_for(lambda: row_of(task)["status"] == "running", timeout=60, process=ann)
    pause(ann)
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
    page.locator("summary", has_text="Cancel").click()
    page.locator("details[open]").get_by_label("Reason").fill("wrong month")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled or asked to stop.")).to_be_visible()
    expect(page.locator("[data-live=answers]")).to_contain_text("olga requested")
    expect(page.locator(BADGE)).to_have_text("running")
    assert polls.now() in (200, 304)
    expect(page.locator(BADGE)).to_have_text("running")
    ann.resume()
    polls.until_shown("cancelled", "[data-live=head]")
    expect(page.locator("[data-live=answers]")).to_contain_text("Cancelled by olga")
    figure("pending while its worker stands still, confirmed once it goes on")
