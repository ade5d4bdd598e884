"""A browser that is watched, on pages served from the test database."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django import Settings

from tests.browser.watch import Watch
from tests.pages import user_with

#: Milliseconds that a browser on a loaded machine gets for what takes it a few.
PATIENCE = 30_000
WIDE = {"width": 1180, "height": 800}

#: Notes a figure for the table of checks.
Figure = Callable[[str], None]


class Visit(Protocol):
    """Open an empty page of a new browser, in which a user with ``permissions`` has signed in, or
    ``user``, or nobody. The options are those of a context of Playwright."""

    def __call__(self, *permissions: str, user: User | None = None, **options: Any) -> Page: ...


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser: that of CHROMIUM, Debian's, or the one that Playwright has brought."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright, pytest.MonkeyPatch.context() as patch:
        # Playwright has an event loop on this thread, which Django would take for ours.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def _alone_if_it_measures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Run a test that measures while no other process of pytest-xdist runs one."""
    folder = tmp_path_factory.getbasetemp().parent  # the one of all processes
    measures = request.node.get_closest_marker("measures") is not None
    with (folder / "others").open("w") as others:
        # Who waits to be alone keeps the next ones from beginning.
        with (folder / "next").open("w") as next_:
            fcntl.flock(next_, fcntl.LOCK_EX)
            fcntl.flock(others, fcntl.LOCK_EX if measures else fcntl.LOCK_SH)
        yield


@pytest.fixture(autouse=True)
def _allow_queries_beside_the_loop(chromium: Browser) -> None:
    """Before any fixture of the test that reads the database."""


@pytest.fixture(autouse=True)
def _two_queues(settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": ("default", "reports")}


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Watch the pages of a test for what they must not do; fails the test at its end."""
    watch = Watch()
    yield watch
    assert watch.problems == []


@pytest.fixture
def visit(chromium: Browser, live_server: Any, watch: Watch) -> Iterator[Visit]:
    contexts = []

    def open_page(*permissions: str, user: User | None = None, **options: Any) -> Page:
        options = {"base_url": live_server.url, "viewport": WIDE, **options}
        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        if permissions:
            user = user_with(*permissions)
        if user is not None:
            value = session_of(user)
            context.add_cookies([{"name": "sessionid", "value": value, "url": options["base_url"]}])
        watch.over(context)
        return context.new_page()

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def olga(transactional_db: None) -> User:
    """Return a user with every permission."""
    return User.objects.create_superuser("olga", password="x")


@pytest.fixture
def page(visit: Visit, olga: User) -> Page:
    """A page of a browser in which olga has signed in."""
    return visit(user=olga)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    return lambda text: request.node.user_properties.append(("figure", text))


def session_of(user: User) -> str:
    """The cookie of a session of ``user``."""
    client = Client()
    client.force_login(user)
    return str(client.cookies["sessionid"].value)
