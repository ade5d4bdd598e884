"""Hastening the live updates of a page: its clock is ours, so that nobody waits two seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page

from tests.processes import wait_for

#: Milliseconds after which a page that asks every two seconds, give or take 15 %, has asked.
A_POLL = 2_400


class Polls:
    """The polls of a page that it was opened for; ``now`` brings about the next one."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[Any] = []
        self.answers: list[Any] = []
        page.on("request", lambda request: self.asked.append(request) if _is(request) else None)
        page.on(
            "response",
            lambda response: self.answers.append(response) if _is(response.request) else None,
        )
        page.clock.install()

    def now(self) -> int:
        """Make the page poll once, and return the status of the answer."""
        count = len(self.answers)
        self.until(lambda: len(self.answers) > count)
        return int(self.answers[-1].status)

    def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Make the page poll until ``condition`` is true."""

        def asked_and_true() -> object:
            # Before the clock moves: what an answer has brought is shown by then.
            if not (found := condition()):
                self.page.clock.run_for(A_POLL)
                found = condition()
            return found

        wait_for(asked_and_true, timeout=timeout)

    def until_shown(self, text: str, within: str = "main", timeout: float = 60.0) -> None:
        """Make the page poll until it shows ``text``."""
        shown = self.page.locator(within)
        self.until(lambda: text in " ".join(shown.inner_text().split()), timeout)


def _is(request: Any) -> bool:
    return "x-live" in request.headers
