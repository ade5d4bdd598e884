"""The pictures of docs/dashboard.md, taken from a demo that runs: ``make screenshots``.

Without DATABASE_URL the demo gets an SQLite file of its own. CHROMIUM names the
browser, where Playwright has brought none.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "docs" / "images"
#: Seconds that the demo works before the first picture, so that the charts show something.
WARM_UP = 75.0
#: And after a worker was crashed: until its tasks have gone on elsewhere.
RECOVERY = 14.0
WIDE, NARROW = {"width": 1180, "height": 760}, {"width": 375, "height": 760}


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """A running demo: its address and the password of its user."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, password = f"http://127.0.0.1:{port}", secrets.token_urlsafe(8)
    with TemporaryDirectory() as folder:
        env = {"DATABASE_URL": f"sqlite:///{folder}/demo.sqlite3"} | os.environ
        env |= {"PORT": str(port), "DEMO_PASSWORD": password}
        with subprocess.Popen(
            [sys.executable, "manage.py", "demo"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL
        ) as process:
            try:
                _wait_until_it_answers(address)
                yield address, password
            finally:
                process.send_signal(signal.SIGINT)


def _wait_until_it_answers(address: str) -> None:
    for _ in range(120):
        with suppress(OSError), urllib.request.urlopen(f"{address}/ops/login/", timeout=5):
            return
        time.sleep(0.5)
    raise SystemExit("The demo did not start.")


def take(browser: Browser, address: str, password: str) -> None:
    """Take all pictures, in the order in which a visitor would look."""
    page = _signed_in(browser, address, password, "light", WIDE)
    time.sleep(WARM_UP)
    for name, path in (("overview", ""), ("queues", "queues/"), ("generator", "generator/")):
        page.goto(f"{address}/ops/{path}")
        _shoot(page, name)
    task = ""
    while "/tasks/" not in task:  # it shows the worker, where that had no task
        page.goto(f"{address}/ops/")
        page.wait_for_timeout(5000)
        page.get_by_role("button", name="Crash a worker").click()
        task = page.url
    page.wait_for_timeout(1000 * RECOVERY)
    page.goto(task)
    _shoot(page, "task")
    page.goto(f"{address}/ops/workers/")
    _shoot(page, "workers")
    page.goto(f"{address}/ops/leases/")
    page.get_by_role("link", name=re.compile("oven")).first.click()
    _shoot(page, "lease")
    for name, theme, size in (
        ("overview-dark", "dark", WIDE),
        ("overview-narrow", "light", NARROW),
    ):
        page = _signed_in(browser, address, password, theme, size)
        page.goto(f"{address}/ops/")
        _shoot(page, name)


def _signed_in(browser: Browser, address: str, password: str, theme: Any, size: Any) -> Page:
    context = browser.new_context(viewport=size, color_scheme=theme)
    page = context.new_page()
    page.goto(f"{address}/ops/login/")
    page.get_by_label("Username").fill("demo")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    return page


def _shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(500)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with demo() as (address, password), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        take(browser, address, password)
        browser.close()


if __name__ == "__main__":
    main()
