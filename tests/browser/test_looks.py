"""Check the appearance of pages in every theme and width, and their accessibility."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import axe_playwright_python
import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect
from pytest_django import Settings

from tests.browser import harbour
from tests.browser.conftest import Figure, Visit
from tests.browser.watch import Watch

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
#: Its rules that depend on colours: all that another theme can change.
OF_COLOURS = ["color-contrast", "link-in-text-block"]
SERIOUS = ("serious", "critical")
#: Pages that differ from others in nothing but a word.
ALIKE = (
    *("tasks all", "tasks ready", "tasks scheduled", "tasks cancelled"),
    *("tasks succeeded", "tasks running", "task scheduled", "task recovered", "task given_up"),
    *("task cancelled", "leases renewed", "workers gone", "charts of a day"),
)

THEMES = {"dark": "dark", "light": "light"}
NARROW: Any = {"width": 375, "height": 760}
WIDE: Any = {"width": 1440, "height": 900}


def _background(page: Page) -> list[int]:
    """Red, green and blue of the page's ground."""
    colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3]]


def _is_dark(page: Page) -> bool:
    return sum(_background(page)) < 3 * 128


def test_28_dark_light_and_auto_follow_the_admin(
    visit: Visit, olga: Any, watch: Watch, figure: Figure
) -> None:
    watch.tolerate("favicon.ico")  # which the admin has not
    page = visit(user=olga, color_scheme="dark")
    told = []
    for theme, dark in (("light", False), ("dark", True), ("auto", True)):
        page.goto(reverse("admin:index"))
        toggle = page.locator("button.theme-toggle").first
        for _ in range(3):
            if page.evaluate("() => localStorage.getItem('theme')") == theme:
                break
            toggle.click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.goto(reverse("leasing_tasks:overview"))
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        assert _is_dark(page) is dark, theme
        told.append(theme)
    page.emulate_media(color_scheme="light")
    assert not _is_dark(page)
    toggle = page.locator("[data-theme-toggle]")
    for _ in range(3):
        toggle.click()
        chosen = page.locator("html").get_attribute("data-theme")
        page.goto(reverse("admin:index"))
        expect(page.locator("html")).to_have_attribute("data-theme", chosen or "")
        page.goto(reverse("leasing_tasks:overview"))
    figure(f"{', '.join(told)}, and back")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_29_axe_finds_nothing_serious_on_any_page(
    visit: Visit, olga: Any, figure: Figure, theme: Any
) -> None:
    pages = {**harbour.fill(), "home": "/", "login": "/ops/login/"}
    page = visit(user=olga, color_scheme=theme)
    rules = {"runOnly": OF_COLOURS} if theme == "dark" else {}
    options = {**rules, "resultTypes": ["violations"]}
    found, looked = [], 0
    for name, path in pages.items():
        if name in ALIKE:
            continue
        page.goto(path)
        assert "could not be read" not in page.content(), name
        page.evaluate(AXE)
        page.evaluate("() => document.querySelectorAll('details').forEach((d) => d.open = true)")
        violations = page.evaluate(
            "async (options) => (await axe.run(document, options)).violations", options
        )
        found += [
            (name, each["id"], node["html"][:200])
            for each in violations
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]
        looked += 1
    assert found == []
    figure(f"{theme}: {looked} pages")


FOCUSABLE = """() => [...document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
    .filter((each) => each.checkVisibility({visibilityProperty: true}) && !each.disabled)
    .map((each, number) => { each.dataset.reach = number; return number; }).length"""
REACHED = """() => {
    const each = document.activeElement, style = getComputedStyle(each);
    const ring = style.outlineStyle !== "none" || style.boxShadow !== "none"
        || style.outlineWidth !== "0px";
    return [each.dataset.reach ?? "", ring, each.outerHTML.slice(0, 120)];
}"""


def test_29_the_keyboard_alone_reaches_everything(page: Page, figure: Figure) -> None:
    pages = harbour.fill()
    reached_in_all = 0
    for name in (
        "leasing_tasks:overview",
        "task stuck",
        "leasing_tasks:queues",
        "leasing:list",
        "tasks failed",
    ):
        page.goto(pages[name])
        page.evaluate("() => document.querySelector('[data-live-toggle]').click()")
        page.evaluate("() => document.activeElement.blur()")
        count = page.evaluate(FOCUSABLE)
        reached = set()
        for _ in range(count + 3):
            page.keyboard.press("Tab")
            number, has_ring, html = page.evaluate(REACHED)
            if number:
                assert has_ring, (name, html)
                reached.add(number)
            if len(reached) == count:
                break
        missed = [n for n in range(count) if str(n) not in reached]
        told = [page.locator(f"[data-reach='{n}']").evaluate("e => e.outerHTML") for n in missed]
        assert told == [], name
        reached_in_all += len(reached)
    # And what one does with a mouse: open, write, send.
    page.goto(pages["task running"])
    page.locator("summary", has_text="Cancel").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Cancelled or asked to stop.")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
    page.keyboard.press("/")
    expect(page.get_by_label("ID, start of name, or argument")).to_be_focused()
    figure(f"{reached_in_all} links, buttons and fields on five pages")


def test_30_at_375_pixels_and_at_1440_no_page_scrolls_sideways(
    visit: Visit, olga: Any, figure: Figure
) -> None:
    pages = {**harbour.fill(), "home": "/", "login": "/ops/login/"}
    page = visit(user=olga, viewport=NARROW)
    wide = {}
    for name, path in pages.items():
        page.goto(path)
        page.evaluate("() => document.querySelectorAll('details').forEach((d) => d.open = true)")
        for size in (WIDE, NARROW):
            page.set_viewport_size(size)
            width = page.evaluate("() => document.documentElement.scrollWidth")
            if width > size["width"]:
                wide[name] = width
    assert wide == {}
    figure(f"{len(pages)} pages")


def test_30_mounted_under_another_prefix_all_links_work(
    page: Page, settings: Settings, figure: Figure
) -> None:
    settings.ROOT_URLCONF = "tests.browser.elsewhere"
    pages = harbour.fill()
    links: set[str] = set()
    for name, path in pages.items():
        assert path.startswith("/harbour/office/"), name
        answer = page.request.get(path)
        assert answer.status == 200, name
        html = answer.text()
        actions = re.findall(r'<(?:form|button)[^>]* (?:form)?action="([^"?]*)', html)
        assert all(action.startswith("/harbour/") for action in actions), name
        found = re.findall(r'<a[^>]* href="([^"]*)"', html)
        links |= {urljoin(path, unescape(link)).partition("#")[0] for link in found}
    for link in links - set(pages.values()):
        assert link.startswith("/harbour/"), link
        assert page.request.get(link).status == 200, link
    page.goto(pages["leasing_tasks:overview"])
    for words in page.locator(".menu a").all_inner_texts():
        page.locator(".menu a", has_text=words).click()
        expect(page.locator(".menu [aria-current]")).to_have_text(words)
    figure(f"{len(links)} links from {len(pages)} pages")
