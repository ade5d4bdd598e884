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
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from _pytest.runner import runtestprotocol

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
}

#: Folders whose tests have no SQL of their own: what is done to rows there is done by the verbs of
#: `querysets`, which are tested on every database, or read by Django's ORM. All their tests count
#: as marked `once`: `make rest` runs them on PostgreSQL.
ONCE = (
    "leasing/celery",
    "leasing/testing",
    "leasing/web",
    "tasks/celery",
    "tasks/diagnosis",
    "tasks/django_api",
    "tasks/execution",
    "tasks/management",
    "tasks/testing",
    "tasks/worker",
)
#: Folders whose tests all count as marked `rest`: the edges, which call what the others test, and
#: races between processes.
REST = (
    "leasing/admin",
    "leasing/api",
    "leasing/client",
    "leasing/dashboard",
    "leasing/views",
    "tasks/admin",
    "tasks/api",
    "tasks/client",
    "tasks/dashboard",
    "tasks/views",
    "races",
)
#: A fixture of tests that concern PostgreSQL alone.
FOR_POSTGRESQL = "on_postgresql"

#: Fixtures that start a server for the whole run. Their tests count as marked `rest`.
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
#: The property of a test that names the implementation whose contract it tries.
CONTRACT = "contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leasing")
    group.addoption("--db", choices=("sqlite", "postgresql"), default="sqlite")
    group.addoption(
        "--only-db", action="store_true", help="leave out the tests that touch no database"
    )
    group.addoption(
        "--once",
        choices=("also", "not", "only"),
        default="also",
        help="run the tests marked `once` as well, leave them out, or run nothing else",
    )
    group.addoption(
        "--no-rest",
        action="store_true",
        help="leave out the tests marked `rest`, and those that need a message broker",
    )
    group.addoption("--counts", metavar="FILE", help="write what passed and failed, as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    # A wrapper comes before pytest-django's hook of this name, which reads the settings.
    if is_worker():
        database = Database(*json.loads(os.environ[CHOSEN]))
    else:
        choose = {"sqlite": _sqlite, "postgresql": _postgresql}
        database = choose[early_config.known_args_namespace.db](early_config)
        os.environ[CHOSEN] = json.dumps(database)
    early_config.stash[DATABASE] = database
    gc.disable()  # nothing of what is imported and collected becomes garbage
    os.environ.update(ENVIRONMENT, DATABASE_URL=database.url)
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In a worker of pytest-xdist, report a test that passed in one message of six, without what
    it printed: sending and reading the others takes a tenth of the CPU of the suite."""
    if not is_worker():
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            if report.passed:
                report.sections.clear()
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def is_worker() -> bool:
    """Return True if pytest-xdist deals out the tests, and this process only runs some."""
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if _is_wanted(item, config)]
    if len(wanted) < len(items):
        kept = set(wanted)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = wanted
    if is_worker():
        items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool, bool]:
    """Return what puts the tests of brokers first, so that one worker has them and starts each
    broker once, and after them what lasts long: at the end nobody could share it."""
    fixtures = _fixtures(item)
    is_long = item.get_closest_marker("rest") is not None
    return not fixtures & BROKERS, not is_long, "process_env" not in fixtures


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _is_left_to_rest(item: pytest.Item) -> bool:
    if item.get_closest_marker("rest") is not None or _folder(item) in REST:
        return True
    return bool(_fixtures(item) & BROKERS)


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    """Return False if this run leaves the test to the run on the other database."""
    on_sqlite = config.stash[DATABASE].name == "SQLite"
    if FOR_POSTGRESQL in _fixtures(item) and on_sqlite:
        return False
    if _is_left_to_rest(item):
        return not config.getoption("no_rest") and config.getoption("once") != "not"
    if not _touches_a_database(item):
        return not config.getoption("only_db") and config.getoption("once") != "only"
    once = _is_once(item)
    return {"also": True, "not": not once, "only": once}[config.getoption("once")]


def _is_once(item: pytest.Item) -> bool:
    if item.get_closest_marker("once") is not None:
        return True
    return _folder(item) in ONCE and FOR_POSTGRESQL not in _fixtures(item)


def _folder(item: pytest.Item) -> str:
    return item.path.parent.relative_to(ROOT / "tests").as_posix()


def pytest_collection_finish() -> None:
    gc.freeze()  # what has been imported stays: no collection need look at it again
    gc.enable()
    gc.set_threshold(50_000, 20, 20)  # a twentieth of the CPU is spent on fewer


def _touches_a_database(item: pytest.Item) -> bool:
    wanted = {"db", "transactional_db", "live_server", "client", "admin_client"}
    return item.get_closest_marker("django_db") is not None or bool(wanted & _fixtures(item))


def pytest_report_header(config: pytest.Config) -> str:
    database = config.stash[DATABASE]
    return f"database: {database.name} ({'thrown away' if database.throw_away else 'given'})"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    stats, database = terminalreporter.stats, config.stash[DATABASE].name
    if path := config.getoption("counts"):
        counts = {kind: len(reports) for kind, reports in stats.items() if kind}
        Path(path).write_text(json.dumps({"on": database, **counts}))
    properties = [entry for report in stats.get("passed", ()) for entry in report.user_properties]
    if held := Counter(value for name, value in properties if name == CONTRACT):
        cases = ", ".join(f"{name} {count}" for name, count in held.items())
        terminalreporter.write_line(f"contract cases on {database}: {cases}")


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
