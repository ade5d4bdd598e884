"""Pictures of the overview, for somebody to look at: ``make incidents SHOTS=folder``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.contrib.staticfiles import finders

SIZES: dict[str, Any] = {
    "wide": {"width": 1180, "height": 800},
    "narrow": {"width": 375, "height": 760},
}
THEMES: tuple[Any, ...] = ("light", "dark")


def take(address: str, session: str, folder: Path, name: str) -> None:
    """Take a picture of the overview in each theme and width.

    Args:
        address: The address of the site.
        session: The key of a session in which a user has signed in.
        folder: The folder of the pictures; it is made.
        name: The beginning of their names.
    """
    from playwright.sync_api import (
        sync_playwright,
    )  # in the environment of the browser's tests only

    folder.mkdir(parents=True, exist_ok=True)
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    args = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        for theme in THEMES:
            for size, viewport in SIZES.items():
                context = browser.new_context(viewport=viewport, color_scheme=theme)
                context.route("**/static/**", _serve)
                context.add_cookies([{"name": "sessionid", "value": session, "url": address}])
                page = context.new_page()
                page.goto(f"{address}/ops/")
                page.screenshot(path=folder / f"{name}-{theme}-{size}.png")
                context.close()
        browser.close()


def _serve(route: Any) -> None:
    """Answer with a static file, in place of the web server that a site has before it."""
    path = urlsplit(route.request.url).path.removeprefix("/static/")
    route.fulfill(path=finders.find(path))
