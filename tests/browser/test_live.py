"""Check an open page that nobody touches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.functions import after, database_now
from leasing.models import Lease
from leasing.web import polling
from tests.browser import harbour
from tests.browser.conftest import Figure
from tests.browser.live import Polls
from tests.browser.watch import Watch
from tests.factories import make_lease, make_task


def test_05_a_new_task_appears_within_two_polls(page: Page, figure: Figure) -> None:
    """With the browser's own clock: the page asks as it does for an operator."""
    asked: list[Any] = []
    page.on("request", lambda r: asked.append(r) if "x-live" in r.headers else None)
    page.goto(reverse("leasing_tasks:list"))
    with page.expect_response(lambda r: "x-live" in r.request.headers):
        pass
    before = len(asked)
    task = make_task()
    expect(page.locator(f"[data-key=task{task.pk}]")).to_be_visible()
    polls = len(asked) - before
    assert polls <= 2
    figure(f"after {polls} poll")


def test_06_through_five_polls_what_one_does_on_a_page_survives(page: Page, figure: Figure) -> None:
    harbour.fill()
    for _ in range(45):
        make_task()
    ticked = make_task()
    polls = Polls(page)
    page.set_viewport_size({"width": 1000, "height": 300})
    page.goto(reverse("leasing_tasks:list"))
    page.locator(f"#pick{ticked.pk}").check()
    page.locator("summary", has_text="filters").click()
    holder = page.get_by_label("Worker (current or last)")
    holder.fill("do")
    page.evaluate("scrollTo(0, 210)")
    for number in range(5):
        new = make_task()
        assert polls.now() == 200
        row = page.locator(f"[data-key=task{new.pk}]")
        polls.until(row.count)
        holder.press_sequentially("ra"[number : number + 1])
    expect(page.locator(f"#pick{ticked.pk}")).to_be_checked()
    expect(page.locator("details.narrow-more")).to_have_attribute("open", "")
    expect(holder).to_have_value("dora")
    expect(holder).to_be_focused()
    assert abs(page.evaluate("scrollY") - 210) < 60
    figure(f"{len(polls.answers)} polls, each of which brought a row")


def test_06_an_open_explanation_and_its_half_written_reason_survive(page: Page) -> None:
    harbour.all_is_well()
    task = make_task(state="running", holder="ann")
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:detail", args=[task.pk]))
    page.locator("summary", has_text="Cancel").click()
    reason = page.locator("details[open]").get_by_label("Reason")
    reason.fill("half a sen")
    for share in (0.1, 0.2, 0.3, 0.4, 0.6):
        harbour.back(task, share)
        polls.now()
    polls.until_shown("late")
    expect(reason).to_have_value("half a sen")
    expect(reason).to_be_focused()


def test_07_a_hidden_tab_sends_no_polls(page: Page, figure: Figure) -> None:
    harbour.all_is_well()
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:overview"))
    polls.now()
    hide(page, True)
    page.clock.run_for(1_000)
    sent = len(polls.asked)
    page.clock.run_for(600_000)
    assert len(polls.asked) == sent
    hide(page, False)
    polls.until(lambda: len(polls.asked) > sent)
    figure("none in ten minutes, and one at once when it is shown again")


def hide(page: Page, hidden: bool) -> None:
    """Tell the page that its tab is hidden, as the browser does."""
    page.evaluate(
        """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_08_on_a_500_the_old_data_stays_with_its_age_and_recovers_alone(
    page: Page, watch: Watch, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.tolerate("status of 500")
    harbour.all_is_well()
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:list"))
    polls.now()
    rows = page.locator("tr[data-key]").count()
    with monkeypatch.context() as broken:
        broken.setattr(polling, "fingerprint", _fail)
        new = make_task()
        polls.until(lambda: [a.status for a in polls.answers].count(500) >= 2)
        toast = page.locator("[data-toast]")
        polls.until(toast.is_visible)
        expect(toast).to_contain_text("The server does not respond.")
        expect(toast).to_contain_text("ago.")
        expect(page.locator("[data-live-word]")).to_have_text("No response")
        assert page.locator("tr[data-key]").count() == rows == 2
    polls.until(page.locator(f"[data-key=task{new.pk}]").count)
    expect(toast).to_be_hidden()
    expect(page.locator("[data-live-word]")).to_have_text("Live")
    failed = [answer.status for answer in polls.answers].count(500)
    figure(f"{failed} polls failed, the next brought what was new")


def _fail(*args: object) -> str:
    raise RuntimeError("the database is away")


def test_09_the_end_of_the_session_stops_polling_and_offers_to_sign_in(
    page: Page, figure: Figure
) -> None:
    harbour.all_is_well()
    polls = Polls(page)
    page.goto(reverse("leasing_tasks:list"))
    polls.now()
    Session.objects.all().delete()
    polls.until(page.locator("[data-toast]").is_visible)
    expect(page.locator("[data-toast]")).to_contain_text("You are signed out.")
    sent = len(polls.asked)
    page.clock.run_for(120_000)
    assert len(polls.asked) == sent
    page.get_by_role("link", name="Sign in again").click()
    expect(page.get_by_label("Username")).to_be_visible()
    assert "next=/ops/tasks/" in page.url
    figure("no poll in the two minutes after")


def test_10_countdowns_fall_survive_a_wrong_browser_clock_and_end_in_expired(
    page: Page, figure: Figure
) -> None:
    """In real time; only the date that the browser believes in is wrong."""
    lease = make_lease(resource="berth:7", ttl=60)
    Lease.objects.filter(pk=lease.pk).update(expires_at=after(timedelta(seconds=6)))
    wrong = database_now("default") + timedelta(hours=3)
    page.add_init_script(f"Date.now = () => {int(wrong.timestamp() * 1000)};")
    page.goto(reverse("leasing:detail", args=[lease.lease_id]))
    until = page.locator("[data-live=answers] time[data-deadline]").first
    seen = []
    for _ in range(20):
        seen.append(until.inner_text())
        if "expired" in seen[-1]:
            break
        page.wait_for_function(
            "([old]) => !document.querySelector("
            "'[data-live=answers] time[data-deadline]').textContent.includes(old)",
            arg=[seen[-1]],
        )
    left = [int(text.split(" s")[0].split()[-1]) for text in seen[:-1]]
    assert left == sorted(left, reverse=True) and len(set(left)) >= 2, seen
    assert left[0] <= 6 and "expired" in seen[-1], seen
    expect(page.locator("[data-answer=until]")).not_to_contain_text("unless renewed")
    expect(page.locator("[data-answer=why]")).to_contain_text("Expired: ", timeout=2_000)
    figure(f"from “{seen[0]}” to “{seen[-1]}”, and its sentence with it")
