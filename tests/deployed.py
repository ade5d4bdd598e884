"""A project that is deployed as docs/deployment.md says: its image is built, its units start.

Nothing is downloaded: pip finds the wheel that is built here, and what it needs is there already.
What the page has below /srv is in a folder of the test.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.brokers import free_ports
from tests.first_hour import first_steps
from tests.plugin import ENVIRONMENT, ROOT
from tests.processes import Process, wait_for
from tests.test_packaging import PIP, build_wheel, make_bare_environment, run

PAGE = ROOT / "docs" / "deployment.md"
#: The folder of the project on the page.
PLACE = "/srv/shop"
#: What the requirements of the page and its commands need.
DISTRIBUTIONS = (
    *("Django", "cronsim", "django-ninja", "psycopg", "psycopg-binary", "prometheus-client"),
    *("gunicorn", "uvicorn", "httpx"),
)
HOST = "shop.example.com"
#: Seconds in which a process starts, on a loaded machine.
START_TIMEOUT = 90.0

#: Handlers and a database that the tests need.
MORE_HANDLERS = """

import time
from pathlib import Path

from django.db import connection


def query(seconds):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


@handler("test.query", max_attempts=1)
def query_for(ctx, seconds):
    query(seconds)


@handler("test.stay")
def stay(ctx, until):
    query(0)  # the thread has a connection now
    while not Path(until).exists():
        time.sleep(0.02)
"""


class Block(NamedTuple):
    """A fenced block of the page, in the section under ``heading``."""

    heading: str
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def page_blocks() -> list[Block]:
    """Return the blocks of the page."""
    found = []
    for part in re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            found.append(Block(heading, language, code))
    return found


def block_of(heading: str, language: str, number: int = 0) -> Block:
    """Return the block of a section with that number."""
    return [
        block for block in page_blocks() if (block.heading, block.language) == (heading, language)
    ][number]


class Unit(NamedTuple):
    """A unit of systemd."""

    name: str
    text: str
    service: Mapping[str, str]

    @property
    def starts(self) -> list[str]:
        """Its command lines."""
        lines = re.findall(r"^ExecStart=(.*)$", self.text, re.MULTILINE)
        return [line.replace("%i", "default") for line in lines]

    @property
    def start(self) -> str:
        """Its only command line."""
        (line,) = self.starts
        return line

    @property
    def stop_signal(self) -> str:
        return self.service["KillSignal"]

    @property
    def stop_timeout(self) -> float:
        return float(self.service["TimeoutStopSec"])


def units() -> dict[str, Unit]:
    """Return the units of the page, by their names."""
    text = PAGE.read_text()
    pattern = r"^`/etc/systemd/system/([\w@.-]+)`[^`]*:\n\n```ini\n(.*?)^```$"
    found = re.findall(pattern, text, re.DOTALL | re.MULTILINE)
    return {name: Unit(name, code, section_of(code, "Service")) for name, code in found}


def section_of(text: str, section: str) -> Mapping[str, str]:
    """Return a section of a file in the format of units."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser[section]


class Started(Process):
    """A program that was started."""

    def stop(self, number: int, within: float) -> int:
        """Send the signal. Return the exit code, which must come ``within`` so many seconds."""
        self.send_signal(number)
        return self.wait(within)

    def close(self) -> None:
        """End it and what it has started, if it still runs."""
        if self.poll() is None:
            os.killpg(self.pid, 9)
            self.wait()


@dataclass
class Site:
    """The project in ``root``, as in its image, and how to start what it runs."""

    root: Path
    database: str
    environment: dict[str, str]
    port: int
    #: The command, port, user and base of the image.
    command: list[str] = field(default_factory=list)
    exposed: str = ""
    user: str = ""
    base: str = ""
    started: list[Started] = field(default_factory=list)

    def placed(self, text: str) -> str:
        """Return ``text`` of the page with the folder and the port of this site."""
        text = text.replace(PLACE, str(self.root)).replace("$PORT", str(self.port))
        return text.replace(":8000", f":{self.port}")

    def start(self, command: Sequence[str], **env: str) -> Started:
        """Start a command of the page."""
        words = [self.placed(word) for word in command]
        path = shutil.which(words[0], path=self.environment["PATH"])
        assert path is not None, words[0]
        log = self.root.parent / f"output-{len(self.started)}.log"
        env = {**self.environment, **env}
        started = Started(words[1:], env, log, program=[path], folder=self.root)
        self.started.append(started)
        return started

    def run(self, line: str, **env: str) -> str:
        """Run a line of a shell. Return what it prints; fails if it fails."""
        done = subprocess.run(
            ["sh", "-c", self.placed(line)],
            cwd=self.root,
            env={**self.environment, **env},
            text=True,
            timeout=START_TIMEOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def python(self, code: str, **env: str) -> str:
        """Run code with the settings of the site."""
        setup = f"import django; django.setup()\n{code}"
        return self.run(f"python -W error -c {shlex.quote(setup)}", **env)

    def get(self, path: str, timeout: float = 30.0) -> tuple[int, str]:
        """Return the status and the text of an address; as by a probe, which names the host."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Host": HOST}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Return the status of a request that comes through a proxy."""
        more = {"Host": HOST, "X-Forwarded-Proto": "https", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, body, {**more, **headers})
        with urllib.request.urlopen(request, timeout=30) as answer:
            status: int = answer.status
            return status

    def answers(self, path: str = "/api/readyz") -> bool:
        """Return True if the address is answered with 200."""
        try:
            return self.get(path)[0] == 200
        except OSError:
            return False

    def wait_until_ready(self, started: Started) -> None:
        """Wait until the web server is ready."""
        try:
            wait_for(self.answers, timeout=START_TIMEOUT)
        finally:
            if not self.answers():
                print(started.output)

    def close(self) -> None:
        """End everything."""
        for started in self.started:
            started.close()
            print(f"--- {started.args!r}: {started.returncode}\n{started.output}")
        self.started.clear()


def write_project(folder: Path, python: Path) -> None:
    """Write the project of the quickstart, with the API and the settings of the page."""
    run(python, "-m", "django", "startproject", "shop", ".", cwd=folder)
    run(python, "manage.py", "startapp", "invoices", cwd=folder)
    for block in first_steps():
        if block.language == "python":
            path = folder / block.file
            kept = path.read_text() if path.name == "settings.py" else ""
            path.write_text(kept + block.text)
    api = (ROOT / "docs" / "http-api.md").read_text().partition("```python\n")[2]
    api = api.partition("```")[0].replace("urlpatterns = [", "urlpatterns += [")
    with (folder / "shop" / "urls.py").open("a") as urls:
        urls.write(api)
    with (folder / "invoices" / "tasks.py").open("a") as handlers:
        handlers.write(MORE_HANDLERS)
    settings = [block_of("Settings", "py", number).text for number in range(2)]
    (folder / "shop" / "production.py").write_text("\n".join(settings))
    pooled = "from shop.production import *\n\n"
    (folder / "shop" / "pooled.py").write_text(pooled + block_of("PgBouncer", "py").text)
    (folder / "requirements.txt").write_text(block_of("Deployment", "text").text)


def build_image(folder: Path, database: str) -> Site:
    """Do what the container file of the page says, with a folder in place of the image.

    Args:
        folder: An empty folder.
        database: The address of the database.
    """
    context, root, wheels = (folder / name for name in ("context", "shop", "wheels"))
    for each in (context, root, wheels):
        each.mkdir()
    build_wheel(wheels)
    python = make_bare_environment(root / ".venv", *DISTRIBUTIONS)
    _write_scripts(python)
    write_project(context, python)
    for path in (context / "shop").glob("*.py"):
        path.write_text(path.read_text().replace(PLACE, str(root)))
    (port,) = free_ports(1)
    site = Site(root, database, _environment(python.parent, wheels), port)
    for line in block_of("Container", "dockerfile").lines:
        _obey(site, line, context)
    site.environment |= _of_deployment(database) | {"HOME": str(folder / "home")}
    (folder / "home").mkdir()
    return site


def _write_scripts(python: Path) -> None:
    """Write the commands that pip would have installed."""
    pip = f"{shlex.join(PIP)} --python {python}"
    for name, command in {
        "pip": pip,
        "gunicorn": f"{python} -m gunicorn",
        "uvicorn": f"{python} -m uvicorn",
    }.items():
        script = python.parent / name
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)


def _environment(programs: Path, wheels: Path) -> dict[str, str]:
    hidden = {*ENVIRONMENT, "DATABASE_URL", "PYTHONPATH", "PYTEST_ADDOPTS", "PYTHONWARNINGS"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    path = f"{programs}:{os.environ['PATH']}"
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    return kept | pip | {"PATH": path}


def _of_deployment(database: str) -> dict[str, str]:
    """Return the variables that the page names, with values of the test."""
    url = urlsplit(database)
    named = block_of("systemd", "text").lines
    values = dict(line.split("=", 1) for line in named)
    return values | {
        "SECRET_KEY": secrets.token_hex(32),
        "ALLOWED_HOSTS": HOST,
        "DATABASE_NAME": url.path[1:],
        "DATABASE_USER": url.username or "",
        "DATABASE_PASSWORD": url.password or "",
        "DATABASE_HOST": url.hostname or parse_qs(url.query)["host"][0],
    }


def _obey(site: Site, line: str, context: Path) -> None:
    """Do what a line of a container file says."""
    word, _, rest = line.partition(" ")
    match word:
        case "FROM":
            site.base = rest
        case "ENV":
            site.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
        case "WORKDIR":
            assert rest == PLACE
        case "COPY":
            source, target = rest.split()
            if source == ".":
                shutil.copytree(context, site.root / target, dirs_exist_ok=True)
            else:
                shutil.copy(context / source, site.root / target)
        case "RUN":
            site.run(rest)
        case "USER":
            site.user = rest
        case "EXPOSE":
            site.exposed = rest
        case "CMD":
            site.command = json.loads(rest)
        case _:
            raise AssertionError(f"Nobody said how to do {line}")


def notified(folder: Path) -> socket.socket:
    """Return a socket in ``folder`` that hears what a service tells systemd."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(folder / "notify"))
    listener.settimeout(START_TIMEOUT)
    return listener


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long a call took."""
    began = time.monotonic()
    action()
    return time.monotonic() - began
