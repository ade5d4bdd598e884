"""The pages about leases."""

from __future__ import annotations

from pathlib import Path

from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.models import Lease
from tests.browser import harbour
from tests.browser.conftest import Figure, Visit
from tests.browser.live import Polls
from tests.browser.watch import Watch
from tests.conftest import Spawn
from tests.factories import make_lease
from tests.processes import wait_for
from tests.races.support import begins, let_go, start_workers, waiting
from tests.tasks.support import refusals


def _tabs(page: Page) -> dict[str, int]:
    """The counts on the tabs, by what they read."""
    tabs = page.evaluate(
        """() => [...document.querySelectorAll("[data-live=tabs] .tab")].map(
        (tab) => [tab.firstChild.textContent.trim() || tab.innerText,
                  tab.querySelector(".count")?.innerText])"""
    )
    return {words.split("\n")[0].split()[0]: int(count) for words, count in tabs if count}


def test_13_active_expired_and_released_add_up_and_renewed_combines_with_each(
    page: Page, figure: Figure
) -> None:
    numbers = {"active": 4, "expired": 3, "released": 2}
    for state, number in numbers.items():
        for index in range(number):
            make_lease(state=state, renewals=index % 2)
    page.goto(reverse("leasing:list"))
    tabs = _tabs(page)
    assert tabs["All"] == tabs["Active"] + tabs["Expired"] + tabs["Released"] == 9
    assert [tabs[name.capitalize()] for name in numbers] == list(numbers.values())
    renewed = {}
    for state, number in numbers.items():
        page.goto(f"{reverse('leasing:list')}?state={state}")
        page.get_by_role("link", name="Renewed").click()
        expect(page.locator("[data-live=tabs] [aria-current=true]")).to_contain_text("Renewed")
        assert f"state={state}" in page.url and "renewed=1" in page.url
        renewed[state] = page.locator("tr[data-key]").count()
        assert renewed[state] == number // 2
    page.goto(f"{reverse('leasing:list')}?renewed=1")
    assert page.locator("tr[data-key]").count() == sum(renewed.values())
    figure(f"{tabs}; renewed of each {renewed}")


def test_14_the_timeline_of_a_lease_shows_rising_tokens_at_takeover(
    page: Page, figure: Figure
) -> None:
    lease = harbour.traded()
    page.goto(reverse("leasing:detail", args=[lease.lease_id]))
    lanes = page.locator(".lanes > li")
    expect(lanes).to_have_count(3)
    for number, holder in enumerate(("ann", "bea", "cid")):
        expect(lanes.nth(number)).to_contain_text(holder)
    page.locator("summary", has_text="Show as table").click()
    tokens = [int(text) for text in page.locator(".plain-table td.mono").all_inner_texts()]
    assert len(tokens) == 3 and tokens == sorted(set(tokens)) and tokens[-1] == lease.fencing_token
    told = page.locator(".timeline li", has_text="Taken over")
    expect(told).to_have_count(2)
    expect(told.first).to_contain_text("cid took it over from bea")
    expect(told.first).to_contain_text(str(tokens[-1]))
    figure(f"{len(tokens)} terms, each token greater than the one before")


def test_15_force_release_needs_permission_reason_and_the_typed_name(
    page: Page, visit: Visit, watch: Watch, figure: Figure
) -> None:
    watch.tolerate("status of 400")
    lease = make_lease(resource="berth:7", holder="ann", ttl=600)
    path = reverse("leasing:detail", args=[lease.lease_id])
    viewer = visit("leasing.view_lease")
    viewer.goto(path)
    expect(viewer.locator("main")).to_contain_text("requires a permission that you do not have")
    assert viewer.locator("main form").count() == 0

    page.goto(path)
    page.locator("summary", has_text="Revoke lease").click()
    take = page.get_by_role("button", name="Revoke lease")
    page.evaluate("document.querySelector('main form').noValidate = true")
    take.click()
    expect(page.get_by_text("Give a reason")).to_be_visible()
    page.get_by_label("Reason").fill("ann is unwell")
    page.get_by_label("Type berth:7 to confirm").fill("berth:8")
    take.click()
    expect(page.get_by_text("This is not the name.")).to_be_visible()
    assert Lease.objects.active().filter(pk=lease.pk).exists()
    page.get_by_label("Type berth:7 to confirm").fill("berth:7")
    take.click()
    expect(page.get_by_text("Lease revoked from ann.")).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("ann is unwell")
    assert not Lease.objects.active().filter(pk=lease.pk).exists()
    figure("refused without permission, without reason, and under another name")


def test_15_the_late_write_of_the_old_holder_shows_as_refused(
    page: Page, spawn: Spawn, tmp_path: Path, figure: Figure
) -> None:
    """A real worker, which never asks whether the task is still its own."""
    ((name, worker),) = start_workers(spawn, "ann", "--threads", "1").items()
    task = waiting(tmp_path)
    begins(tmp_path, 1)
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
    page.locator("summary", has_text="Revoke lease").click()
    page.locator("details[open]").get_by_label("Reason").fill("it takes too long")
    page.locator("details[open]").get_by_label("to confirm").fill(task.lease_id)
    page.get_by_role("button", name="Revoke lease").click()
    expect(page.get_by_text(f"Lease revoked from {name}.")).to_be_visible()
    let_go(tmp_path, 1)
    wait_for(lambda: any(refusals(task)), timeout=60, process=worker)
    polls.until_shown("A late result was refused", "[data-live=attempts]")
    figure("a worker's result, after its task was taken")
