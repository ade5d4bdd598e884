"""The site that is fuzzed, under gunicorn, and those who call it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.brokers import Program, free_ports
from tests.plugin import ENVIRONMENT
from tests.postgres import serve as postgres
from tests.processes import wait_for
from tests.web_servers import GUNICORN, START_TIMEOUT, Site

#: Threads of the one process; a wait takes one. The length of an address is left to the API.
OPTIONS = ("--workers", "1", "--threads", "4", "--limit-request-line", "0")


@dataclass(frozen=True)
class Principal:
    """Somebody who calls the API.

    Args:
        name: What it is called in the table.
        mode: The LEASING_API_ACCESS of its site.
        scheme: The security scheme of the document by which it comes; empty: with nothing.
        secret: Its token, or the key of its session.
        headers: What it sends besides.
    """

    name: str
    mode: str
    scheme: str = ""
    secret: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def credentials(self) -> dict[str, str]:
        """The headers of its requests."""
        if self.scheme == "token":
            return {"Authorization": f"Bearer {self.secret}"}
        if self.scheme == "session":
            return {"Cookie": f"sessionid={self.secret}", **self.headers}
        return {}


@contextmanager
def database(kind: str) -> Iterator[Path]:
    """Set Django up on a new database, "sqlite" or "postgresql", with all its tables. Yields a
    folder, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="leasing-fuzz-") as name:
        folder = Path(name)
        os.environ |= ENVIRONMENT
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.fuzz.settings"
        if kind == "sqlite":
            yield _set_up(folder, f"sqlite:///{folder / 'db.sqlite3'}")
        else:
            with postgres() as server:
                yield _set_up(folder, server.url)


def _set_up(folder: Path, url: str) -> Path:
    os.environ["DATABASE_URL"] = url
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return folder


@contextmanager
def site(folder: Path, mode: str) -> Iterator[tuple[Site, Program]]:
    """Run the site with that LEASING_API_ACCESS."""
    (port,) = free_ports(1)
    command = [sys.executable, *GUNICORN, *OPTIONS, "--bind", f"127.0.0.1:{port}"]
    env = {"LEASING_API_ACCESS": mode, "PYTHONWARNINGS": "default"}
    program = Program(command, env, folder / f"{mode}.log")
    program.start()
    try:
        found = Site(port)
        wait_for(found.answers, timeout=START_TIMEOUT)
        yield found, program
    finally:
        program.end(15)


def principals() -> list[Principal]:
    """Make each kind of principal; the first may do everything, and sees the document."""
    from django.contrib.auth.models import User

    import project.urls  # noqa: F401  whose routes make known what scopes there are
    from leasing.models import ApiToken
    from leasing.models.api_token import known_scopes

    _, every = ApiToken.objects.issue("every-scope", scopes=known_scopes())
    few_scopes = {"leasing.view_lease", "leasing.change_lease", "leasing_tasks.add_task"}
    _, few = ApiToken.objects.issue(
        "few-scopes", scopes=few_scopes, prefix="report:", queues=["default"]
    )
    staff = User.objects.create_superuser("staff")
    nobody = User.objects.create_user("without-permission")
    return [
        Principal("a token of every scope", "closed", "token", every),
        Principal("a token of few scopes", "closed", "token", few),
        Principal("a session of staff", "closed", "session", *session(staff)),
        Principal("a user without permission", "closed", "session", *session(nobody)),
        Principal("nobody", "closed"),
        Principal("a stranger of the compatible mode", "compatible"),
    ]


def session(user: object) -> tuple[str, dict[str, str]]:
    """Sign ``user`` in, and return the key of the session and the header that proves intent."""
    from django.contrib.auth import login
    from django.contrib.sessions.backends.db import SessionStore
    from django.http import HttpRequest
    from django.middleware.csrf import get_token

    request = HttpRequest()
    request.session = SessionStore()
    login(request, user)  # type: ignore[arg-type]
    token = get_token(request)
    request.session.save()
    return str(request.session.session_key), {"X-CSRFToken": token}
