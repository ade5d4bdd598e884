"""The PostgreSQL of the benchmark, with durability, and its databases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg

from tests.postgres import serve

ROOT = Path(__file__).parent.parent.parent

#: Durable as by default; memory and log enough that checkpoints do not disturb.
SERVER = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
    "log_line_prefix": "%d ",
    "timezone": "UTC",
}
TEMPLATE = "bench_template"


def environment(url: str) -> dict[str, str]:
    """The environment of a process that works on the database at ``url``."""
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings",
        "SECRET_KEY": "known to everybody, for the benchmark only",
        "ALLOWED_HOSTS": "localhost",
        "DEBUG": "false",
        "PYTHONUNBUFFERED": "1",
    }


class Databases:
    """The databases of one server, each a copy of a migrated one."""

    def __init__(self, url: str) -> None:
        self.url = url

    def prepare(self) -> None:
        """Make the migrated database that others are copies of."""
        self.drop(TEMPLATE)
        self._create(TEMPLATE, "template0")
        migrate(self.named(TEMPLATE))

    def fresh(self, name: str) -> str:
        """Make ``name`` again, with empty tables; returns its address."""
        self.drop(name)
        self._create(name, TEMPLATE)
        return self.named(name)

    def drop(self, name: str) -> None:
        """Remove ``name``, even if somebody is connected to it."""
        self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def settle(self) -> None:
        """Write what is due now, so that it is not written while somebody measures."""
        self._do("CHECKPOINT")

    def named(self, name: str) -> str:
        """The address of the database ``name``."""
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def version(self) -> str:
        """Of the server."""
        with psycopg.connect(self.url) as connection:
            number = connection.info.server_version
        return f"PostgreSQL {number // 10000}.{number % 10000}"

    def _create(self, name: str, template: str) -> None:
        self._do(f"CREATE DATABASE {name} TEMPLATE {template}")

    def _do(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


def migrate(url: str) -> None:
    """Make the tables."""
    command = [sys.executable, "manage.py", "migrate", "--run-syncdb", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=environment(url), check=True)


@contextmanager
def running() -> Iterator[Databases]:
    """A server of our own, for as long as the block runs. Raises ``tests.postgres.NoServer``."""
    with serve(SERVER) as server:
        databases = Databases(server.url)
        databases.prepare()
        yield databases


def log_of(url: str) -> Path | None:
    """The log of the server at ``url``, if it is one that ``running`` started here."""
    hosts = parse_qs(urlsplit(url).query).get("host")
    log = Path(hosts[0], "log") if hosts else None
    return log if log and log.exists() else None
