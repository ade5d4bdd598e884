"""Lists that others write to, that are sent on, and that are taken away as files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from django.urls import reverse
from playwright.sync_api import Page, expect

from tasks.models import Task
from tests.browser.conftest import Figure, Visit
from tests.factories import make_lease, make_task, make_worker
from tests.pages import user_with


def shown(page: Page) -> list[str]:
    """The keys of the rows that the page shows, in its order."""
    found = page.evaluate(
        "() => [...document.querySelectorAll('tr[data-key]')].map((row) => row.dataset.key)"
    )
    return list(found)


def test_25_paging_under_inserts_shows_none_twice_and_misses_none(
    page: Page, figure: Figure
) -> None:
    there = [f"task{make_task().pk}" for _ in range(120)]
    page.goto(reverse("leasing_tasks:list"))
    seen = shown(page)
    pages = 1
    while page.get_by_role("link", name="Older").count():
        for _ in range(7):
            make_task()
        with page.expect_navigation():
            page.get_by_role("link", name="Older").click()
        seen += shown(page)
        pages += 1
    assert seen == there[::-1]
    back = shown(page)
    while page.get_by_role("link", name="Newer").count():
        make_task()
        with page.expect_navigation():
            page.get_by_role("link", name="Newer").click()
        back += shown(page)
    assert len(back) == len(set(back)) and set(there[50:]) <= set(back)
    figure(f"{len(seen)} of {len(there)} on {pages} pages, none twice")


def test_26_a_copied_address_reproduces_the_view(page: Page, visit: Visit, figure: Figure) -> None:
    make_worker()
    for number in range(130):
        make_task(holder="dora" if number % 2 else "emil", state="succeeded")
    page.goto(reverse("leasing_tasks:list"))
    page.get_by_role("navigation", name="State").get_by_role("link", name="Succeeded").click()
    page.locator("summary", has_text="filters").click()
    page.get_by_label("Worker (current or last)").fill("dora")
    page.get_by_role("button", name="Apply").click()
    page.get_by_label("ID, start of name, or argument").fill("sample")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**at=**")
    vera = user_with("leasing_tasks.view_task", "leasing_tasks.view_payload", name="vera")
    other = visit(user=vera)
    other.goto(page.url)
    assert shown(other) == shown(page) and len(shown(page)) == 15
    for part in ("[data-live=tabs]", ".narrow .pick-chip"):
        assert other.locator(part).all_inner_texts() == page.locator(part).all_inner_texts()
    expect(other.get_by_label("ID, start of name, or argument")).to_have_value("sample")
    figure(f"state, filter, search and place: {len(shown(page))} rows the same")


def test_27_exports_match_the_filter_and_formulas_are_neutralised(
    page: Page, tmp_path: Path, figure: Figure
) -> None:
    formulas = {"=HYPERLINK(1)", "+1", "-1", "@SUM(1)"}
    for formula in formulas:
        task = make_task(state="failed", holder="dora")
        Task.objects.filter(pk=task.pk).update(name=formula)
    for _ in range(70):
        make_task(state="failed", holder="dora")
    make_task(state="failed", holder="emil")
    make_task()
    for number in range(3):
        make_lease(holder=f"=cmd{number}", state="expired" if number else "active")
    page.goto(f"{reverse('leasing_tasks:list')}?state=failed&holder=dora")
    listed = shown(page)
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**at=**")
    listed += shown(page)
    files = {}
    for form in ("CSV", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("link", name=form, exact=True).click()
        files[form] = tmp_path / form
        download.value.save_as(files[form])
    table = list(csv.DictReader(files["CSV"].read_text().splitlines()))
    rows = json.loads(files["JSON"].read_text())
    assert [f"task{row['id']}" for row in table] == listed and len(listed) == 74
    assert [str(row["id"]) for row in rows] == [row["id"] for row in table]
    assert formulas <= {row["name"] for row in rows}
    assert {f"'{formula}" for formula in formulas} <= {row["name"] for row in table}
    page.goto(f"{reverse('leasing:list')}?state=expired")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    download.value.save_as(files["CSV"])
    leases = list(csv.DictReader(files["CSV"].read_text().splitlines()))
    assert {row["holder"] for row in leases} == {"'=cmd1", "'=cmd2"}
    cells = [cell for row in (*table, *leases) for cell in row.values()]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
    figure(f"{len(table)} tasks as on two pages of the list, {len(formulas)} formulas quoted")
