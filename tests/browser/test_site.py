"""Look at the built documentation on a static host: five pages, in each width and theme."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.plugin import ROOT

#: The landing page, the first page with code, tables, a long page with diagrams, the runbook.
PAGES = ("", "quickstart/", "guarantees/", "tasks/", "runbook/worker-gone/")
SIZES = {"wide": (1440, 900), "narrow": (375, 760)}
SCHEMES = {
    "light": lambda brightness: brightness > 600,
    "dark": lambda brightness: brightness < 200,
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and writes no line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site, serve it, and return its address."""
    folder = tmp_path_factory.mktemp("site")
    sphinx = [sys.executable, "-m", "sphinx", "-b", "dirhtml", "-nqWE"]
    build = [*sphinx, str(ROOT / "docs"), str(folder)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_five_pages_of_the_site_fit_their_window_in_each_theme(
    chromium: Browser, site: str, size: str, scheme: Literal["light", "dark"], tmp_path: Path
) -> None:
    width, height = SIZES[size]
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda answer: problems.extend([answer.url] * (answer.status >= 400)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    for name in PAGES:
        page.goto(urljoin(site, name))
        assert page.locator("h1").count() == 1, name
        assert page.locator("h2").count() >= 3 or not name, name
        overflow = "() => document.documentElement.scrollWidth - window.innerWidth"
        assert page.evaluate(overflow) <= 0, f"{name} is wider than {width} px"
        assert SCHEMES[scheme](_brightness(page)), name
        hidden = "() => [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
        assert page.evaluate(hidden) == [], name
        page.screenshot(path=tmp_path / f"{name.replace('/', '-') or 'index'}.png")
        assert {urlsplit(each).netloc for each in _loaded(page)} <= {urlsplit(site).netloc}
    context.close()
    assert problems == []


def test_code_of_the_site_is_copied_without_prompts_and_comments_for_a_runner(
    chromium: Browser, site: str
) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(urljoin(site, "quickstart/"))
    block = page.locator("div.highlight", has_text="def test_a_new_customer").first
    block.hover()
    block.locator("button.copybtn").click()

    copied = page.evaluate("() => navigator.clipboard.readText()")

    assert copied.startswith("from tasks.testing import drain\n")
    assert "RequestFactory" not in page.locator("article").inner_text()
    context.close()


def test_no_link_of_five_pages_of_the_site_is_broken(chromium: Browser, site: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    found: set[str] = set()
    for name in PAGES:
        page.goto(urljoin(site, name))
        links = page.locator("article a[href], .sidebar-tree a[href]")
        found |= set(links.evaluate_all("links => links.map(link => link.href)"))
    ours = {link for link in found if link.startswith(site)}

    broken = []
    for link in ours:
        answer = context.request.get(link.partition("#")[0])
        anchor = urlsplit(link).fragment
        if answer.status != 200 or anchor and f'id="{anchor}"' not in answer.text():
            broken.append(link)
    context.close()

    assert len(ours) > 60
    assert broken == []


def _brightness(page: Page) -> int:
    colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3])


def _loaded(page: Page) -> list[str]:
    script = "() => performance.getEntriesByType('resource').map(entry => entry.name)"
    return list(page.evaluate(script))
