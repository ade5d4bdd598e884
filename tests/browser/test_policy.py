"""Check the policy of pages, and that they work without any script."""

from __future__ import annotations

from django.urls import reverse
from playwright.sync_api import Page, expect

from tasks.models import Task
from tests.browser import harbour
from tests.browser.conftest import Figure, Visit
from tests.browser.watch import Watch
from tests.factories import make_lease, make_task

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def test_02_no_page_violates_the_policy_errs_or_asks_another_host(
    page: Page, watch: Watch, figure: Figure
) -> None:
    pages = {**harbour.fill(), "home": "/"}
    for name, path in pages.items():
        answer = page.goto(path)
        assert answer is not None and answer.status == 200, name
        assert answer.headers["content-security-policy"] == POLICY, name
        assert watch.problems == [], name
    asked = len(watch.requests)
    figure(f"{len(pages)} pages, {asked} requests, all to one host")


def test_02_what_the_policy_refuses_would_be_noticed(page: Page, watch: Watch) -> None:
    page.goto(reverse("leasing_tasks:overview"))
    page.evaluate(
        """() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(script);
        document.body.setAttribute("style", "color: red");
        }"""
    )
    assert "owned" not in page.title()
    assert any("script-src" in problem for problem in watch.problems)
    assert any("style-src" in problem for problem in watch.problems)
    watch.problems.clear()


def test_03_without_javascript_one_lists_filters_pages_retries_and_stops(
    visit: Visit, olga: object, figure: Figure
) -> None:
    failed = make_task(state="failed", holder="dora")
    running = make_task(state="running", holder="emil")
    for _ in range(60):
        make_lease()
    page = visit(user=olga, java_script_enabled=False)  # type: ignore[arg-type]

    page.goto(reverse("leasing_tasks:list"))
    expect(page.locator("tr[data-key]")).to_have_count(2)
    page.get_by_role("navigation", name="State").get_by_role("link", name="Failed").click()
    expect(page.locator("tr[data-key]")).to_have_count(1)
    page.locator("summary", has_text="filters").click()
    page.get_by_label("Worker (current or last)").fill("nobody")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("tr[data-key]")).to_have_count(0)

    page.goto(reverse("leasing:list"))
    expect(page.locator("tr[data-key]")).to_have_count(52)  # a page of leases, and the tasks'
    page.get_by_role("link", name="Older").first.click()
    assert "at=" in page.url

    page.goto(reverse("leasing_tasks:detail", args=[failed.pk]))
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("Retried.")).to_be_visible()
    assert Task.objects.get(pk=failed.pk).status == "ready"

    page.goto(reverse("leasing_tasks:detail", args=[running.pk]))
    page.locator("summary", has_text="Cancel").click()
    page.locator("details[open]").get_by_label("Reason").fill("enough")
    page.get_by_role("button", name="Cancel").click()
    assert Task.objects.get(pk=running.pk).cancel_requested_at

    page.goto(reverse("leasing_tasks:generator"))
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-answer=desired] dd")).to_have_text("Stopped")
    figure("list, filter, next page, retry, cancel, start and stop")
