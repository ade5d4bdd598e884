"""The servers of a run, and the networks between them and its processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.brokers import Program, free_ports
from tests.postgres import OPTIONS, START_TIMEOUT, NoServer, Server, find_account, serve
from tests.proxy import DatabaseProxy, TcpProxy

#: The template of the databases of workloads.
TEMPLATE = "chaos_template"
PGBOUNCER = Path("/usr/sbin/pgbouncer")
#: Any client may use any database.
POOLER = """
[databases]
* = host={folder} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
query_wait_timeout = 5
server_login_retry = 1
"""


@dataclass
class Postgres:
    """A PostgreSQL that loses nothing it has acknowledged, PgBouncer before it, and a proxy before
    each."""

    server: Server
    proxy: DatabaseProxy
    pooler: TcpProxy | None

    @property
    def proxies(self) -> list[TcpProxy]:
        return [self.proxy, *([self.pooler] if self.pooler else [])]

    def url(self, database: str, network: str = "direct") -> str:
        """Return the address of a database by a network: ``direct``, ``proxy`` or ``pooler``."""
        if network == "direct":
            return f"postgresql://postgres@/{database}?host={self.server.folder}"
        way = self.pooler if network == "pooler" and self.pooler else self.proxy
        return f"postgresql://postgres@{way.address}/{database}"

    def session(self, database: str = "postgres") -> psycopg.Connection:
        """Return a session of the harness."""
        return psycopg.connect(self.url(database), autocommit=True)


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """Run the servers; raises ``NoServer`` if PostgreSQL cannot be started."""
    # A crash must not forget what was acknowledged. The system's cache outlives it: no fsync.
    options = {
        **OPTIONS,
        "synchronous_commit": "on",
        "checkpoint_timeout": "60",
        "max_connections": "60",
    }
    (port,) = free_ports(1)
    with (
        serve(options) as server,
        closing(DatabaseProxy(server.folder)) as proxy,
        pgbouncer(server.folder, folder, port) as pooler,
    ):
        yield Postgres(server, proxy, pooler)


@contextmanager
def pgbouncer(sockets: Path, folder: Path, port: int) -> Iterator[TcpProxy | None]:
    """Run PgBouncer before the server whose socket is in ``sockets``, and a proxy before that; None
    if it is not installed. Raises ``NoServer`` if it does not start."""
    if not PGBOUNCER.exists():
        print("chaos: no pgbouncer (Debian: pgbouncer): without it in the path", file=sys.stderr)
        yield None
        return
    config = sockets / "pgbouncer.ini"
    config.write_text(POOLER.format(folder=sockets, port=port))
    config.chmod(0o644)
    command = [*find_account().prefix, str(PGBOUNCER), str(config)]
    program = Program(command, {}, folder / "pgbouncer.out")
    program.start()
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while "process up" not in program.output:
            if not program.runs() or time.monotonic() > deadline:
                raise NoServer(f"PgBouncer did not start:\n{program.output}")
            time.sleep(0.02)
        with closing(TcpProxy(port)) as proxy:
            yield proxy
    finally:
        program.end(signal.SIGTERM)


def terminate_all(session: psycopg.Connection, database: str) -> int:
    """End the sessions of a database but this one. Return how many there were."""
    found = session.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = %s AND pid <> pg_backend_pid()",
        [database],
    ).fetchone()
    assert found is not None
    return int(found[0])
