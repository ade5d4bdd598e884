"""Chooses the database of a test run before Django reads its settings.

``pytest --db sqlite`` (the default) uses a file in a temporary folder, ``pytest --db
postgresql`` the server of DATABASE_URL, or a throw-away one where that names none. With ``-n 4``
pytest-xdist deals the tests out to four workers, each of which has a database of its own there.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

ROOT = Path(__file__).parent.parent

# What a developer has exported, or keeps in .env, must not change the tests.
ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "tests.settings",
    "DEBUG": "false",
    "SECRET_KEY": "known to everybody, for the tests only",
    "ALLOWED_HOSTS": "localhost,127.0.0.1",
    "LEASING_API_ACCESS": "closed",
    "LEASING_TTL": "",
    "SERVICES": "leases,tasks",
    "LEASE_SERVICE_URL": "",
    "LEASE_REDIS_URL": "",
}

#: Fixtures that start a server for the whole run.
BROKERS = {"redis_broker", "rabbitmq_broker"}


class Database(NamedTuple):
    """The database of this run."""

    name: str
    url: str
    throw_away: bool

    def named(self, name: str) -> str:
        """The URL of another database of this server, or of another file."""
        if self.url.startswith("sqlite:"):
            return f"sqlite:///{name}"
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    @contextmanager
    def another(self, stem: str) -> Iterator[str]:
        """The URL of an empty database of this server beside its own, whose name begins with
        ``stem``, until the block ends."""
        # Workers of pytest-xdist share the server.
        name = f"{stem}_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self.url, autocommit=True) as server:
            server.execute(f"CREATE DATABASE {name}".encode())
            try:
                yield self.named(name)
            finally:
                server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


DATABASE = pytest.StashKey[Database]()
#: The variable that hands it to the workers of pytest-xdist.
CHOSEN = "TESTS_DATABASE"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--db", choices=("sqlite", "postgresql"), default="sqlite")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    # A wrapper comes before pytest-django's hook of this name, which reads the settings.
    if "PYTEST_XDIST_WORKER" in os.environ:
        database = Database(*json.loads(os.environ[CHOSEN]))
    else:
        choose = {"sqlite": _sqlite, "postgresql": _postgresql}
        database = choose[early_config.known_args_namespace.db](early_config)
        os.environ[CHOSEN] = json.dumps(database)
    early_config.stash[DATABASE] = database
    gc.disable()  # nothing of what is imported and collected becomes garbage
    os.environ.update(ENVIRONMENT, DATABASE_URL=database.url)
    yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of brokers first: so one worker of pytest-xdist has them, and starts each
    broker once. Then those that take a minute, so that none of them is the last."""

    def place(item: pytest.Item) -> tuple[bool, bool]:
        uses_broker = bool(BROKERS & set(getattr(item, "fixturenames", ())))
        return not uses_broker, not item.get_closest_marker("long")

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()  # what has been imported stays: no collection need look at it again
    gc.enable()
    gc.set_threshold(50_000, 20, 20)  # a twentieth of the CPU is spent on fewer


def pytest_report_header(config: pytest.Config) -> str:
    database = config.stash[DATABASE]
    return f"database: {database.name} ({'thrown away' if database.throw_away else 'given'})"


def _sqlite(config: pytest.Config) -> Database:
    """A file, because tests start processes that share it."""
    folder = tempfile.mkdtemp(prefix="leasing-sqlite-")
    # Removes the folder when this process is gone, in whatever way.
    _helper(config, "sh", "-c", 'cat; rm -rf "$0"', folder)
    return Database("SQLite", f"sqlite:///{folder}/db.sqlite3", throw_away=True)


def _postgresql(config: pytest.Config) -> Database:
    url = os.environ.get("DATABASE_URL", "")
    given = urlsplit(url).scheme in ("postgres", "postgresql")
    if not given:
        server = _helper(config, sys.executable, "-m", "tests.postgres")
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        if not url:
            raise pytest.UsageError("no PostgreSQL to test on; the reason is above")
    with psycopg.connect(url) as connection:
        version = connection.info.server_version
    name = f"PostgreSQL {version // 10000}.{version % 10000}"
    return Database(name, url, throw_away=not given)


def _helper(config: pytest.Config, *command: str) -> subprocess.Popen[str]:
    """A process that cleans up and ends when its input does: at the end, or if we are killed."""
    helper = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests
    )

    def finish() -> None:
        helper.communicate()  # closes the input, waits for the end, closes the output

    config.add_cleanup(finish)
    return helper
