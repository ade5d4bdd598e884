"""Fixtures for the tests of leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from leasing import signals
from leasing.db import statements
from leasing.functions import EPOCH, DbMicroseconds, DbNow
from leasing.holding import Hold
from leasing.holding.keeper import Keeper
from leasing.models import Lease
from leasing.stores import rows
from leasing.web import polling
from tests.fixtures import (
    clocks,
    compatible,
    holder_clock,
    others_write,
    portable,
    registry,
    shard,
    spans,
    value,
)
from tests.leasing.support import (
    OFTEN,
    ByHand,
    FakeClock,
    FakeStore,
    Hanging,
    OtherSession,
    hold_of,
)
from tests.limits import limits

__all__ = [
    "clocks",
    "compatible",
    "holder_clock",
    "limits",
    "others_write",
    "portable",
    "registry",
    "shard",
    "spans",
    "value",
]


class DatabaseClock:
    """The database's clock, moved by hand. Whole microseconds, as PostgreSQL has them."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def moment(self, now: DbNow, compiler: Any, connection: Any, **extra: Any) -> Any:
        text = self.now.replace(tzinfo=None).isoformat(" ", "microseconds")
        template = f"'{text}'"
        if connection.vendor == "postgresql":
            template = f"'{text}+00'::timestamptz"
        return now.as_sql(compiler, connection, template=template)

    def microseconds(
        self, now: DbMicroseconds, compiler: Any, connection: Any, **extra: Any
    ) -> Any:
        count = (self.now - EPOCH) // timedelta(microseconds=1)
        return now.as_sql(compiler, connection, template=str(count))


class Forgetful(dict[Any, Any]):
    """Keeps no statement: the time stands in its text."""

    def __setitem__(self, key: Any, statement: Any) -> None:
        pass


@pytest.fixture
def database_clock(monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    """Stops the clock of the database; the test moves it."""
    clock = DatabaseClock()
    monkeypatch.setattr(statements, "_cache", Forgetful())
    vendor = f"as_{connection.vendor}"
    monkeypatch.setattr(DbNow, vendor, lambda *args, **extra: clock.moment(*args, **extra))
    monkeypatch.setattr(
        DbMicroseconds, vendor, lambda *args, **extra: clock.microseconds(*args, **extra)
    )
    # A page goes on counting while it is rendered.
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: 0.0))
    return clock


@pytest.fixture
def clock() -> FakeClock:
    """The holder's clock, moved by hand."""
    return FakeClock()


@pytest.fixture
def hand() -> ByHand:
    return ByHand()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def manual_keeper(clock: FakeClock) -> Keeper:
    """A keeper that does nothing by itself."""
    return Keeper(clock=clock, threads=False)


@pytest.fixture
def hold(store: FakeStore, manual_keeper: Keeper) -> Hold:
    """A hold for 30 s on what no database knows, not yet entered."""
    return hold_of(store, manual_keeper, ttl=30)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """A renewal that hangs, let go at the end."""
    renewal = Hanging()
    yield renewal
    renewal.let_go.set()


@pytest.fixture
def often() -> Iterator[None]:
    """Holds are renewed often though granted for long: a slow machine loses none by itself."""
    with override_settings(LEASING=OFTEN):
        yield


@pytest.fixture
def without_jitter() -> Iterator[None]:
    """Renew at even intervals."""
    with override_settings(LEASING={"JITTER": 0}):
        yield


@pytest.fixture
def live_keeper() -> Iterator[Keeper]:
    """A keeper with threads of its own, stopped at the end."""
    keeper = Keeper()
    yield keeper
    keeper.stop()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, manual_keeper: Keeper) -> Keeper:
    """Lets notes for the ledger wait until the test has them written."""
    monkeypatch.setattr(rows, "keeper", manual_keeper)
    return manual_keeper


@pytest.fixture
def other_session() -> Iterator[OtherSession]:
    session = OtherSession()
    yield session
    session.close()


@pytest.fixture(params=["portable", "one statement"])
def form(request: pytest.FixtureRequest) -> str:
    """Each form in which this database acquires and releases named leases."""
    if request.param == "portable":
        request.getfixturevalue("portable")
    elif connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL does it in one statement")
    return str(request.param)


@pytest.fixture
def on_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("row locks are PostgreSQL's")


Sent = list[tuple[str, Lease, dict[str, Any]]]


@pytest.fixture
def sent() -> Iterator[Sent]:
    """Every signal that was sent: its name, the lease and what else it says."""
    heard: Sent = []
    receivers: list[tuple[Any, Callable[..., None]]] = []
    for name in ("acquired", "taken_over", "renewed", "released", "revoked", "lost", "refused"):

        def receiver(lease: Lease, _name: str = name, **details: Any) -> None:
            rest = {k: v for k, v in details.items() if k not in ("signal", "sender")}
            heard.append((_name, lease, rest))

        signal = getattr(signals, name)
        signal.connect(receiver, weak=False)
        receivers.append((signal, receiver))
    yield heard
    for signal, receiver in receivers:
        signal.disconnect(receiver)
