"""Watch a page for requests and errors that its reader does not see."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

#: What the policy refused, told where all that goes wrong is told.
TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => console.error(
    `policy: ${event.effectiveDirective} refused ${event.blockedURI} ${event.sourceFile}`));
"""


class Watch:
    """Notes errors on the console, what the security policy refused, uncaught exceptions, and
    requests to other hosts."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.requests: list[Any] = []
        self._tolerated: list[str] = []

    def tolerate(self, pattern: str) -> None:
        """Say that a problem that reads like ``pattern`` is one which the test brings about."""
        self._tolerated.append(pattern)

    def over(self, context: Any) -> None:
        """Watch every page of ``context``."""
        context.add_init_script(TELL_VIOLATIONS)
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._note(f"exception: {error.error}"))
        context.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._note(f"console: {message.text} ({message.location.get('url')})")

    def _on_request(self, request: Any) -> None:
        self.requests.append(request)
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.hostname != "localhost":
            self._note(f"request to another host: {request.url}")

    def _note(self, problem: str) -> None:
        if not any(re.search(pattern, problem) for pattern in self._tolerated):
            self.problems.append(problem)
