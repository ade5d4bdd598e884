"""Holds on rows, kept by the threads of a real keeper on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test import override_settings

from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from leasing.holding.keeper import Keeper, keeper
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.querysets import LeasableQuerySet
from leasing.stores.rows import RowStore
from tests.conftest import Spawn
from tests.factories import make_lease
from tests.leasing.support import OFTEN, PATIENCE, OtherSession, events, usurp
from tests.logs import logged
from tests.plugin import DATABASE
from tests.processes import wait_for
from tests.proxy import Proxy
from tests.races.test_losing import socket_folder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("often")]


@pytest.fixture(autouse=True)
def the_keeper() -> Iterator[Keeper]:
    """The keeper of this process, as users have it."""
    yield keeper
    keeper.stop()


def renewals(resource: str = "crane:1") -> int:
    return Lease.objects.get(resource=resource).renewals


def test_a_hold_is_renewed_by_itself_and_released_at_the_end() -> None:
    with Lease.objects.hold("crane:1", ttl=30) as hold:
        granted_until = hold.trusted_until
        wait_for(lambda: renewals() >= 2)
        wait_for(lambda: hold.trusted_until > granted_until)

    assert events("crane:1") == ["acquired", "released"]
    assert Lease.objects.released().exists()


def test_a_hold_lives_longer_than_its_ttl() -> None:
    with Lease.objects.hold("crane:1", ttl=3) as hold:
        first_deadline = hold.expires_at
        wait_for(lambda: database_now("default") > first_deadline)
        hold.ensure()

    assert events("crane:1") == ["acquired", "released"]


def test_a_revoked_hold_is_told_once_and_the_next_holder_is_left_alone() -> None:
    reported: list[Term] = []
    hold = Lease.objects.hold("crane:1", on_lost=reported.append)
    with pytest.raises(LeaseLost, match="revoked or released"), hold:
        assert Lease.objects.revoke("enough", "root") == 1
        assert hold.term.lost.wait(PATIENCE)
        successor = Lease.objects.acquire("crane:1", holder="bob")

    wait_for(lambda: "lost" in events("crane:1"))
    assert reported == [hold.term]
    assert set(events("crane:1")) == {"acquired", "revoked", "lost"}
    assert Lease.objects.active().get().grant_id == successor.grant_id


def test_a_hold_that_was_taken_over_is_told() -> None:
    with (
        pytest.raises(LeaseLost, match="thief has held it since"),
        Lease.objects.hold("crane:1") as hold,
    ):
        usurp(Lease.objects.get())
        assert hold.lost.wait(PATIENCE)
        with pytest.raises(LeaseLost):
            hold.ensure()


def test_a_deleted_row_is_a_lost_hold() -> None:
    with (
        pytest.raises(LeaseLost, match="its row is gone"),
        Lease.objects.hold("crane:1") as hold,
    ):
        Lease.objects.all().delete()
        assert hold.lost.wait(PATIENCE)


def test_a_silent_database_loses_the_hold_and_the_ledger_hears_of_it_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    away.set()
    real = LeasableQuerySet.record

    def record(rows: Any, kind: str, row: Any, **fields: Any) -> None:
        if kind == "lost" and away.is_set():
            raise OperationalError("the database is away")
        real(rows, kind, row, **fields)

    def renew(rows: Any, *args: Any) -> Any:
        raise OperationalError("the database is away")

    monkeypatch.setattr(LeasableQuerySet, "record", record)
    monkeypatch.setattr(RowStore, "renew_many", renew)
    reported: list[Term] = []
    with override_settings(LEASING={**OFTEN, "MARGIN": 0.8}):
        hold = Lease.objects.hold("crane:1", ttl=1, on_lost=reported.append)
        with pytest.raises(LeaseLost, match="it was not renewed in time"), hold:
            assert hold.term.lost.wait(PATIENCE)

    wait_for(lambda: "keeper.note_waits" in logged(caplog))
    assert reported == [hold.term]
    assert events("crane:1") == ["acquired"]
    away.clear()
    wait_for(lambda: events("crane:1") == ["acquired", "lost"])


def test_a_refusal_is_noted_by_the_keeper_although_the_caller_rolls_back() -> None:
    lease = make_lease(resource="crane:1")
    usurp(lease)

    with pytest.raises(LeaseLost), transaction.atomic():
        Lease.objects.release(lease)

    wait_for(lambda: events("crane:1") == ["acquired", "refused"])


def test_the_keeper_has_a_connection_of_its_own_and_gives_it_up_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[Any] = []
    real = RowStore.renew

    def renew(store: RowStore, *args: Any) -> Any:
        if not used:
            used.append(connections["default"])
        return real(store, *args)

    monkeypatch.setattr(RowStore, "renew", renew)
    with Lease.objects.hold("crane:1"):
        wait_for(lambda: renewals() >= 1)
    (private,) = used

    assert private is not connection
    assert private.settings_dict["CONN_MAX_AGE"] is None
    assert private.is_private_to_keeper
    wait_for(lambda: private.connection is None)


def test_a_renewal_that_failed_is_tried_again_on_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions: list[Any] = []
    real = RowStore.renew_many

    def renew_many(rows: Any, *args: Any) -> Any:
        connections["default"].ensure_connection()
        sessions.append(connections["default"].connection)
        if len(sessions) == 1:
            raise OperationalError("the connection was cut")
        return real(rows, *args)

    monkeypatch.setattr(RowStore, "renew_many", renew_many)
    with Lease.objects.hold("crane:1"):
        wait_for(lambda: renewals() >= 1)

    assert sessions[0] is not sessions[1]


def test_two_holds_of_one_process_are_two_holds() -> None:
    with Lease.objects.hold("crane:1") as one, Lease.objects.hold("crane:2") as two:
        assert one.holder == two.holder
        wait_for(lambda: renewals("crane:1") >= 1 and renewals("crane:2") >= 1)

    assert Lease.objects.released().count() == 2


@pytest.mark.usefixtures("on_postgresql")
def test_a_row_that_another_session_has_locked_is_renewed_as_soon_as_it_is_free(
    other_session: OtherSession,
) -> None:
    with Lease.objects.hold("crane:1") as hold, Lease.objects.hold("crane:2"):
        other_session.lock(Lease.objects.get(resource="crane:1"))
        count = renewals("crane:2")
        wait_for(lambda: renewals("crane:2") >= count + 3)
        while_locked = renewals("crane:1")
        assert hold.valid

        other_session.commit()
        wait_for(lambda: renewals("crane:1") > while_locked)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="there is no network to SQLite")
def test_a_hold_outlives_a_connection_whose_answers_never_come(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = socket_folder(request.config.stash[DATABASE].url)
    if not folder:
        pytest.skip("the server that was given has no socket here")
    proxy = Proxy(tmp_path, Path(folder))
    lease = Lease.objects.acquire("crane:1", ttl=3)
    Lease.objects.release(lease)

    def renewals() -> int:
        return Lease.objects.get(pk=lease.pk).renewals

    # For connections that are still to be made: that of the keeper.
    monkeypatch.setitem(connections.settings["default"], "HOST", str(proxy.folder))
    often = override_settings(LEASING={"JITTER": 0, "RENEW_EVERY": 1})
    with often, Lease.objects.hold("crane:1", ttl=30) as hold:
        wait_for(lambda: renewals() >= 1)
        caplog.clear()
        proxy.swallow_so_far()
        # It drains for moments only, which a loaded machine may look away for: the log stays.
        wait_for(lambda: "keeper.cut_off" in logged(caplog))
        count = renewals()
        wait_for(lambda: renewals() > count)
        wait_for(lambda: not keeper.draining)
        hold.ensure()
    keeper.stop()
    proxy.close()


@pytest.mark.slow
def test_at_its_end_a_process_gives_back_what_its_threads_still_hold(spawn: Any) -> None:
    code = (
        "import django, threading; django.setup()\n"
        "from functools import partial\n"
        "from leasing.holding.keeper import keeper\n"
        f"keeper.stop = partial(keeper.stop, {PATIENCE})\n"
        "from leasing.models import Lease\n"
        "def hold_of(name):\n"
        "    return Lease.objects.hold(name, on_lost=lambda hold: print('told'))\n"
        "hold = hold_of('main')\n"
        "hold.__enter__()\n"
        "entered = threading.Event()\n"
        "def work():\n"
        "    with hold_of('thread'):\n"
        "        entered.set()\n"
        "        threading.Event().wait()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "entered.wait()\n"
    )
    process = spawn(["-W", "ignore::ResourceWarning", "-c", code])
    assert process.wait(30) == 0

    released = Lease.objects.filter(released_at__isnull=False).order_by("resource")
    assert [lease.resource for lease in released] == ["main", "thread"], process.output
    assert "reported" not in process.output


WEIGHED = """
import django; django.setup()

import gc, logging, tracemalloc
from leasing.models import Lease

logging.disable(logging.CRITICAL)
names = [f"crane:{number}" for number in range(40)]
holds = [None] * len(names)
Lease.objects.hold("warm").__enter__()
gc.collect()
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
for number, name in enumerate(names):
    holds[number] = Lease.objects.hold(name).__enter__()
gc.collect()
print((tracemalloc.get_traced_memory()[0] - before) / len(names))
"""


@pytest.mark.slow
def test_a_hold_weighs_less_than_two_kibibytes(spawn: Spawn) -> None:
    # In a process of its own: what other tests have left behind would be counted too.
    process = spawn(["-c", WEIGHED])
    assert process.wait(60) == 0, process.output
    weight = float(process.output)
    assert weight < 2048 * 1.35, "its row and a share of what grows by steps included"
