"""A holder loses its leases in every way there is: what it is told, when, and that it writes
nothing afterwards. Run with ``-rP`` to see the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from django.db import connection

from leasing.functions import database_now
from leasing.models import Lease
from leasing.runtime.clock import clock
from tests.conftest import Spawn
from tests.plugin import DATABASE
from tests.postgres import Server, serve
from tests.processes import Process, wait_for
from tests.proxy import Proxy
from tests.races.support import PATIENCE, pause

pytestmark = pytest.mark.slow

#: Seconds.
TTL = 5.0
#: Each way of hearing, by the hold that is told so.
WAYS = {
    "sync": ["event", "callback", "ensure", "exception"],
    "async": ["cancellation", "exception"],
}
#: For how long a machine under load may leave a process unscheduled, in seconds.
SLACK = 2.0


class Writer(NamedTuple):
    """The process that holds, and what it has noted."""

    process: Process
    notes: Path

    def moments(self, which: str, what: str) -> list[float]:
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        return [float(at) for one, kind, at in lines if (one, kind) == (which, what)]

    def is_at_work(self) -> bool:
        return self.notes.exists() and all(self.moments(which, "write") for which in WAYS)

    def wait_for_work(self) -> None:
        wait_for(self.is_at_work, timeout=PATIENCE, process=self.process)

    def has_ended(self) -> bool:
        return self.process.poll() is not None


@pytest.fixture
def writer(spawn: Spawn, tmp_path: Path) -> Callable[..., Writer]:
    def start(**env: str) -> Writer:
        notes = tmp_path / "notes"
        return Writer(spawn(["-m", "tests.races.writer", str(TTL), str(notes)], **env), notes)

    return start


def socket_folder(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("host", [""])[0]


def deadlines() -> dict[str, float]:
    """Return the moment at which the database ends each lease, on the machine's clock."""
    here, now = clock(), database_now("default")  # in this order: rather too early than too late
    leases = Lease.objects.filter(resource__in=WAYS)
    return {each.resource: here + (each.expires_at - now).total_seconds() for each in leases}


def check(fault: str, writer: Writer, since: float, ends: dict[str, float]) -> None:
    """Each hold was told in every way, once, before the database's deadline, and wrote nothing
    from then on."""
    wait_for(writer.has_ended, timeout=PATIENCE)
    for which, ways in WAYS.items():
        last = writer.moments(which, "write")[-1]
        print(f"{fault}, {which}: deadline {ends[which] - since:+.2f} s after the fault")
        print(f"    last write {last - ends[which]:+.3f} s from the deadline")
        for way in ways:
            reported = writer.moments(which, way)
            assert len(reported) == 1, f"{which} was told {len(reported)} times by {way}"
            print(f"    {way:12} {reported[0] - ends[which]:+.3f} s")
            assert reported[0] < ends[which], f"{which} was told too late by {way}"
        assert last < ends[which], f"{which} wrote after its deadline"
        first_reported = min(writer.moments(which, way)[0] for way in ways)
        assert last < first_reported, f"{which} wrote after it was told"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="there is no network to SQLite")
def test_a_holder_whose_network_swallows_its_renewals(
    writer: Callable[..., Writer], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = socket_folder(request.config.stash[DATABASE].url)
    if not folder:
        pytest.skip("the server that was given has no socket here")
    (tmp_path / "net").mkdir()
    proxy = Proxy(tmp_path / "net", Path(folder))
    url = f"postgresql://postgres@/{connection.settings_dict['NAME']}?host={proxy.folder}"
    started = writer(DATABASE_URL=url)
    started.wait_for_work()

    proxy.swallow()
    since, ends = clock(), deadlines()
    check("swallowed", started, since, ends)
    proxy.close()


def test_a_holder_that_is_revoked(writer: Callable[..., Writer]) -> None:
    started = writer()
    started.wait_for_work()

    since, ends = clock(), deadlines()
    assert Lease.objects.filter(resource__in=WAYS).revoke(by="an operator") == 2
    check("revoked", started, since, ends)


def test_a_holder_that_was_suspended(writer: Callable[..., Writer]) -> None:
    started = writer()
    started.wait_for_work()
    rounds = Lease.objects.get(resource="async").renewals
    wait_for(lambda: Lease.objects.get(resource="async").renewals > rounds)

    pause(started.process)
    ends = deadlines()
    wait_for(lambda: clock() > max(ends.values()) + 0.2)
    taken = [Lease.objects.acquire(which, holder="successor", ttl=60) for which in WAYS]
    since = clock()
    started.process.resume()
    wait_for(started.has_ended, timeout=PATIENCE)

    for which, ways in WAYS.items():
        print(f"suspended, {which}: deadline {ends[which] - since:+.2f} s from the resumption")
        assert started.moments(which, "write")[-1] < ends[which]
        for way in ways:
            (reported,) = started.moments(which, way)
            print(f"    {way:12} {reported - since:+.3f} s after the resumption")
            assert reported - since < 1 + SLACK
    for lease in taken:
        token = lease.fencing_token
        lease.refresh_from_db()
        assert (lease.holder, lease.fencing_token) == ("successor", token)


@pytest.fixture
def own_server(spawn: Spawn) -> Iterator[Server]:
    """A PostgreSQL of this test's own, with our tables."""
    with serve() as server:
        migration = spawn(["manage.py", "migrate", "-v0"], DATABASE_URL=server.url)
        assert migration.wait(60) == 0, migration.output
        yield server


def deadlines_at(server: Server) -> dict[str, float]:
    with psycopg.connect(
        host=socket_folder(server.url), user="postgres", dbname="postgres"
    ) as session:
        here = clock()
        remaining: list[Any] = session.execute(
            "SELECT resource, extract(epoch FROM expires_at - clock_timestamp()) FROM leasing_lease"
        ).fetchall()
        return {which: here + float(seconds) for which, seconds in remaining}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite does not restart")
def test_a_holder_whose_database_restarts(
    writer: Callable[..., Writer], own_server: Server
) -> None:
    started = writer(DATABASE_URL=own_server.url)
    started.wait_for_work()

    # Back before trust ends: nobody is told anything.
    own_server.stop()
    own_server.start()
    ends = deadlines_at(own_server)
    wait_for(lambda: min(deadlines_at(own_server).values()) > max(ends.values()) + 0.1)
    assert not any(started.moments(which, way) for which, ways in WAYS.items() for way in ways)

    # Away for longer: until the holder has ended, so the deadlines are those of its last renewals.
    since = clock()
    own_server.stop()
    wait_for(started.has_ended, timeout=PATIENCE)
    own_server.start()
    check("restarted", started, since, deadlines_at(own_server))
