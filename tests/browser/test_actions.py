"""Act as an operator from the pages."""

from __future__ import annotations

from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.models import AuditEntry
from tasks.models import Task
from tests.browser.conftest import Figure
from tests.conftest import Spawn
from tests.factories import make_task, make_worker
from tests.tasks.support import row_of


def test_18_retry_makes_one_attempt_and_so_does_a_double_click(
    page: Page, spawn: Spawn, figure: Figure
) -> None:
    tasks = [make_task(name="jobs.echo", data={}, state="given_up") for _ in range(2)]
    for task, click in zip(tasks, ("click", "dblclick"), strict=True):
        page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
        getattr(page.get_by_role("button", name="Retry"), click)()
        expect(page.locator("[data-live=head] .badge")).to_have_text("ready")
    worker = spawn(["manage.py", "run_worker", "--skip-checks", "--once"])
    assert worker.wait(60) == 0, worker.output
    for task in tasks:
        row = row_of(task)
        assert (row["status"], row["grants"]) == ("succeeded", 2)
    changed = [entry.changed for entry in AuditEntry.objects.filter(verb="retry")]
    assert sum(filter(None, changed)) == 2
    figure(f"two retries, {len(changed)} posts, one attempt each")


def test_19_a_bulk_retry_of_mixed_states_reports_what_changed_and_what_was_skipped(
    page: Page, figure: Figure
) -> None:
    tasks = [make_task(state=s) for s in ("failed", "cancelled", "succeeded", "running")]
    make_task(state="failed")  # which nobody ticks
    page.goto(reverse("leasing_tasks:list"))
    for task in tasks:
        page.locator(f"#pick{task.pk}").check()
    page.get_by_role("button", name="Retry…").click()
    main = page.locator("main")
    expect(main).to_contain_text("2 of 4 will be changed.")
    page.get_by_role("button", name="Retry 2 tasks").click()
    report = "Retried: 2 of 4 tasks. Not changed: 1 running, 1 succeeded."
    expect(main).to_contain_text(report)
    ready = Task.objects.filter(status="ready").values_list("pk", flat=True)
    assert set(ready) == {task.pk for task in tasks[:2]}
    figure(report)


def test_21_a_pause_with_its_reason_shows_on_queue_overview_and_each_waiting_task(
    page: Page, figure: Figure
) -> None:
    make_worker()
    tasks = [make_task() for _ in range(3)]
    page.goto(reverse("leasing_tasks:queues"))
    row = page.locator("tr[data-key=queue-default]")
    row.locator("summary").click()
    row.get_by_role("button", name="Pause queue", exact=True).click()
    assert page.evaluate("document.querySelector(':invalid') !== null")  # no pause without reason
    row.get_by_label("Reason").fill("the printer burns")
    row.get_by_role("button", name="Pause queue", exact=True).click()
    expect(row).to_contain_text("the printer burns")
    expect(row).to_contain_text("olga")
    page.goto(reverse("leasing_tasks:overview"))
    for region in ("health", "queues"):
        expect(page.locator(f"[data-live={region}]")).to_contain_text("the printer burns")
    for task in tasks:
        page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
        expect(page.locator("[data-live=answers]")).to_contain_text("the printer burns")
        expect(page.locator("[data-live=answers]")).to_contain_text("olga")
    page.goto(reverse("leasing_tasks:queues"))
    row.get_by_role("button", name="Resume").click()
    expect(row).to_contain_text("open")
    figure(f"queue, overview twice, {len(tasks)} of {len(tasks)} tasks")
