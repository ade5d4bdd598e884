"""Pruning: which rows go, which stay, and that nothing else differs afterwards."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from leasing import once
from leasing.functions import DbMicroseconds
from leasing.models import Lease, LeaseEvent, OnceKey
from leasing.pruning import Pruned, prune
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, events, just_before_the_deletion, usurp
from tests.press.models import Receipt
from tests.shop.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("database_clock")]

DAY = 86_400.0
MONTH = timedelta(days=30)


def take(resource: str = "crane:1", holder: str = "ann", **terms: Any) -> Lease:
    return Lease.objects.acquire(resource, holder=holder, **terms)


def keep(lease: Any, clock: DatabaseClock) -> None:
    """Hold ``lease``, granted for a day, for four days."""
    for _ in range(8):
        clock.advance(DAY / 2)
        type(lease).objects.renew(lease)


def left() -> list[str]:
    return list(Lease.objects.order_by("resource").values_list("resource", flat=True))


# Leases


def test_leases_that_nobody_held_for_a_month_are_deleted(database_clock: DatabaseClock) -> None:
    Lease.objects.create(resource="never-held", created_at=database_clock.now)
    Lease.objects.release(take("released"))
    take("expired", ttl=30)
    take("revoked", ttl=30)
    Lease.objects.filter(resource="revoked").revoke()

    database_clock.advance(29 * DAY)
    assert prune(MONTH).leases == 0
    database_clock.advance(DAY + 30)
    assert prune(MONTH).leases == 4
    assert left() == []


def test_the_month_is_counted_from_the_end_of_the_term_to_the_moment(
    database_clock: DatabaseClock,
) -> None:
    take(ttl=30)

    database_clock.advance(30 * DAY + 29)
    assert prune(MONTH).leases == 0
    database_clock.advance(1)
    assert prune(MONTH).leases == 1


def test_a_row_that_was_just_made_is_left_to_whoever_made_it(database_clock: DatabaseClock) -> None:
    Lease.objects.create(resource="crane:1", created_at=database_clock.now)

    database_clock.advance(1)
    assert prune(MONTH).leases == 0


def test_a_grace_is_not_cut_short(database_clock: DatabaseClock) -> None:
    take(ttl=30, grace=60 * DAY)

    database_clock.advance(60 * DAY)
    assert prune(MONTH).leases == 0
    database_clock.advance(30)
    assert prune(MONTH).leases == 1


def test_a_revocation_counts_as_late_as_it_came(database_clock: DatabaseClock) -> None:
    """It gave out a token."""
    take(ttl=30)
    database_clock.advance(29 * DAY)
    Lease.objects.revoke()

    database_clock.advance(2 * DAY)
    assert prune(MONTH).leases == 0
    database_clock.advance(28 * DAY)
    assert prune(MONTH).leases == 1


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_what_another_has_locked_is_passed_over(
    database_clock: DatabaseClock, other_session: OtherSession
) -> None:
    first = take("crane:1")
    take("crane:2")
    database_clock.advance(60 * DAY)
    other_session.lock(first)

    assert prune(MONTH).leases == 1
    assert left() == ["crane:1"]
    other_session.commit()
    assert prune(MONTH).leases == 1


def test_what_is_taken_between_the_look_and_the_deletion_stays(
    database_clock: DatabaseClock,
) -> None:
    """As could happen where there are no row locks."""
    lease = take("crane:1", holder="ann")
    take("crane:2")
    database_clock.advance(60 * DAY)

    with just_before_the_deletion(lambda: usurp(lease, "bob")):
        assert prune(MONTH).leases == 1

    assert left() == ["crane:1"]
    assert Lease.objects.get().holder == "bob"


def test_a_batch_is_a_transaction_and_what_stays_does_not_hold_up_the_rest(
    database_clock: DatabaseClock,
) -> None:
    leases = [take(f"crane:{number}") for number in range(7)]
    database_clock.advance(60 * DAY)

    with (
        CaptureQueriesContext(connection) as queries,
        just_before_the_deletion(lambda: usurp(leases[0])),
    ):
        assert prune(MONTH, batch=2).leases == 6

    deletions = [q["sql"] for q in queries if 'DELETE FROM "leasing_lease"' in q["sql"]]
    assert len(deletions) == 4
    assert left() == ["crane:0"]


# Tokens, and names that are used again


def test_tokens_rise_across_pruning_and_re_creation(database_clock: DatabaseClock) -> None:
    tokens = []
    keys = set()
    for _ in range(4):
        for _ in range(3):  # the clock stands still: each token is the one before plus one
            lease = take()
            Lease.objects.revoke()
            tokens += [lease.fencing_token, Lease.objects.get().fencing_token]
        keys.add(Lease.objects.get().pk)
        database_clock.advance(DAY + 1)
        assert prune(timedelta(days=1)).leases == 1

    assert tokens == sorted(set(tokens))
    assert len(keys) == 4


def test_a_row_whose_token_is_ahead_of_the_clock_stays_until_the_clock_has_passed_it(
    database_clock: DatabaseClock,
) -> None:
    """As after a failover to a machine whose clock is behind, or a token raised by hand."""
    Lease.objects.release(take())
    ahead = int((database_clock.now.timestamp() + 10 * DAY) * 1_000_000)
    Lease.objects.update(fencing_token=ahead)

    database_clock.advance(39 * DAY)
    assert prune(MONTH).leases == 0
    database_clock.advance(DAY)
    assert prune(MONTH).leases == 1
    assert take().fencing_token > ahead


# Work that is done once


@pytest.fixture
def work() -> Callable[..., Any]:
    def do(key: str, window: float, body: Callable[[], Any] = lambda: 1) -> Any:
        return once(key, window=window, ttl=30).run(body)

    return do


def test_keys_of_once_go_a_month_after_their_window(
    database_clock: DatabaseClock, work: Callable[..., Any]
) -> None:
    work("short", window=60)
    work("long", window=20 * DAY)

    database_clock.advance(30 * DAY + 59)
    assert prune(MONTH).once_keys == 0
    database_clock.advance(1)
    assert prune(MONTH).once_keys == 1
    assert OnceKey.objects.get().key == "long"
    database_clock.advance(20 * DAY)
    assert prune(MONTH).once_keys == 1


@pytest.mark.parametrize(
    ("held_days", "days", "pruned"),
    [(0, 30, 1), (70, 60, 0)],
    ids=["its work crashed", "it still runs: its lease is renewed, but its window is not"],
)
def test_a_key_whose_work_never_ended_goes_when_nobody_holds_it(
    database_clock: DatabaseClock, held_days: float, days: float, pruned: int
) -> None:
    OnceKey.objects.create(
        key="import",
        holder="ann",
        grants=1,
        grant_id=uuid.uuid4(),
        acquired_at=database_clock.now,
        expires_at=database_clock.now + timedelta(days=held_days, seconds=30),
        window_ends_at=database_clock.now + timedelta(seconds=60),
        fencing_token=1,
    )

    database_clock.advance(days * DAY + 60)
    assert prune(MONTH).once_keys == pruned


def test_the_key_of_once_keeps_a_token_that_is_ahead_of_the_clock(
    database_clock: DatabaseClock, work: Callable[..., Any]
) -> None:
    work("import", window=60)
    OnceKey.objects.update(fencing_token=DbMicroseconds() + int(10 * DAY * 1_000_000))

    database_clock.advance(39 * DAY)
    assert prune(MONTH).once_keys == 0
    database_clock.advance(2 * DAY)
    assert prune(MONTH).once_keys == 1


# The ledger


def test_the_events_of_terms_that_were_long_over_go(database_clock: DatabaseClock) -> None:
    for _ in range(3):
        Lease.objects.release(take())
        database_clock.advance(1)
    database_clock.advance(60 * DAY)

    assert prune(MONTH) == Pruned(leases=1, events=6, once_keys=0)
    assert not LeaseEvent.objects.exists()


def test_of_what_is_still_in_use_the_old_terms_go_too(database_clock: DatabaseClock) -> None:
    Lease.objects.release(take())
    database_clock.advance(60 * DAY)
    Lease.objects.release(take())

    assert prune(MONTH) == Pruned(leases=0, events=2, once_keys=0)
    assert events("crane:1") == ["acquired", "released"]


@pytest.mark.parametrize("batch", [1, 500])
def test_who_has_held_for_longer_than_is_kept_is_still_told(
    database_clock: DatabaseClock, batch: int
) -> None:
    other = take("crane:2")
    lease = take("crane:1", ttl=DAY)
    Lease.objects.record("refused", lease)
    Lease.objects.release(other)
    keep(lease, database_clock)

    assert prune(timedelta(days=1), batch) == Pruned(leases=1, events=2, once_keys=0)
    assert LeaseEvent.objects.held_at("crane:1", database_clock.now).get().holder == "ann"
    assert events("crane:1") == ["acquired", "refused"]


def test_the_late_writes_of_who_held_before_go_though_the_next_term_lasts(
    database_clock: DatabaseClock,
) -> None:
    late = take(holder="ann")
    Lease.objects.revoke()
    lease = take(holder="bob", ttl=DAY)
    Lease.objects.record("refused", late)
    keep(lease, database_clock)

    assert prune(timedelta(days=1)).events == 3
    assert [event.holder for event in LeaseEvent.objects.all()] == ["bob"]


def test_a_term_of_which_nobody_noted_the_end_goes_when_it_is_old(
    database_clock: DatabaseClock,
) -> None:
    """Its row was deleted, and created again since."""
    take(holder="ann", ttl=DAY)
    Lease.objects.get().delete()
    database_clock.advance(60 * DAY)
    take(holder="bob")

    assert prune(MONTH).events == 1
    assert LeaseEvent.objects.get().holder == "bob"


@pytest.mark.parametrize("end", ["released", "revoked", "expired"])
def test_a_term_that_ended_lately_is_kept_from_its_beginning(
    database_clock: DatabaseClock, end: str
) -> None:
    lease = take(ttl=DAY)
    keep(lease, database_clock)
    middle = database_clock.now
    if end == "released":
        Lease.objects.release(lease)
    elif end == "revoked":
        Lease.objects.revoke()
    database_clock.advance(2 * DAY)
    if end == "expired":
        take(holder="bob")

    assert prune(timedelta(days=3)).events == 0
    held = LeaseEvent.objects.held_at("crane:1", middle - timedelta(seconds=1))
    assert held.get().holder == "ann"
    database_clock.advance(2.5 * DAY)
    assert prune(timedelta(days=3)).events >= 1
    assert "ann" not in LeaseEvent.objects.values_list("holder", flat=True)


def test_an_end_is_not_deleted_before_its_beginning(database_clock: DatabaseClock) -> None:
    """Or somebody would seem to have held on until the next grant."""
    Lease.objects.release(take(holder="ann"))
    begun = LeaseEvent.objects.get(kind="acquired")
    ended = LeaseEvent.objects.get(kind="released")
    database_clock.advance(60 * DAY)
    before = database_clock.now - MONTH

    # The beginning is locked by another that prunes, and so is not in the window.
    assert LeaseEvent.objects.all()._delete_over([ended], before) == 0
    assert LeaseEvent.objects.all()._delete_over([begun], before) == 1
    assert LeaseEvent.objects.all()._delete_over([ended], before) == 1


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_events_that_another_has_locked_are_passed_over(
    database_clock: DatabaseClock, other_session: OtherSession
) -> None:
    Lease.objects.release(take("crane:1"))
    Lease.objects.release(take("crane:2"))
    database_clock.advance(60 * DAY)
    other_session.begin()
    locked = LeaseEvent.objects.filter(resource="crane:1", kind="acquired").select_for_update()
    other_session.run(lambda: list(locked))

    assert prune(MONTH).events == 2
    assert events("crane:1") == ["acquired", "released"]


def test_the_events_of_rows_of_other_models_go_and_stay_by_the_same_rule(
    database_clock: DatabaseClock,
) -> None:
    long, short = Order.objects.create(), Order.objects.create()
    Order.objects.acquire(short, holder="bob", ttl=30)
    held = Order.objects.acquire(long, holder="ann", ttl=DAY)
    keep(held, database_clock)

    assert prune(timedelta(days=1)).events == 1
    assert LeaseEvent.objects.get().holder == "ann"
    assert Order.objects.count() == 2


def test_the_events_of_an_app_that_is_gone_go_too(database_clock: DatabaseClock) -> None:
    for model in ("gone.model", "leasing.gone"):
        event = LeaseEvent(
            model=model, key="1", resource="x:1", kind="acquired", at=database_clock.now
        )
        event.save()
    database_clock.advance(60 * DAY)

    assert prune(MONTH).events == 2


@pytest.mark.parametrize("batch", [1, 500])
def test_terms_of_one_name_in_two_models_are_told_apart(
    database_clock: DatabaseClock, batch: int
) -> None:
    order = Order.objects.create()
    named = take(order.lease_resource, holder="bob", ttl=30)
    held = Order.objects.acquire(order, holder="ann", ttl=DAY)
    Lease.objects.release(named)
    keep(held, database_clock)

    assert prune(timedelta(days=1), batch).events == 2
    assert LeaseEvent.objects.get().holder == "ann"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happened_who_held_since_is_told_as_before(
    database_clock: DatabaseClock, seed: int
) -> None:
    chance = random.Random(seed)
    begin = database_clock.now
    live: dict[str, Lease] = {}
    for _ in range(40):
        database_clock.advance(chance.choice([0, 1, 20, DAY, 5 * DAY]))
        name = chance.choice(["crane:1", "crane:2"])
        act(chance, name, live)
    database_clock.advance(chance.choice([0, DAY, 40 * DAY]))
    age = timedelta(days=chance.choice([1, 30, 60]))
    kept_from = max(begin, database_clock.now - age)
    moments = [kept_from + chance.random() * (database_clock.now - kept_from) for _ in range(4)]
    moments += [kept_from, database_clock.now]
    # Where an answer changes:
    events = LeaseEvent.objects.filter(at__gte=kept_from).values_list("at", flat=True)
    moments += chance.sample(list(events), min(6, len(events)))

    def answers() -> list[tuple[str, ...]]:
        return [
            tuple(f"{e.holder} {e.held_until}" for e in LeaseEvent.objects.held_at(name, moment))
            for name in ("crane:1", "crane:2")
            for moment in moments
        ]

    reported = answers()
    tokens = {lease.resource: lease.fencing_token for lease in Lease.objects.all()}
    prune(age, batch=chance.choice([1, 2, 7, 500]))

    assert answers() == reported
    assert prune(age) == Pruned(0, 0, 0)
    for name, token in tokens.items():
        database_clock.advance(2 * DAY)
        assert take(name).fencing_token > token


def act(chance: random.Random, name: str, live: dict[str, Lease]) -> None:
    """Do something that may happen to the lease ``name``."""
    row = Lease.objects.with_state().filter(resource=name).first()
    if row is None or row.state != "active":
        if row is not None and row.state == "expired" and chance.random() < 0.2:
            Lease.objects.filter(resource=name).revoke()
            return
        live[name] = take(name, chance.choice("abc"), ttl=chance.choice([30, DAY]))
        return
    match chance.choice(["renew", "renew", "release", "revoke", "refuse"]):
        case "refuse":
            Lease.objects.record("refused", live[name])
        case "renew":
            Lease.objects.renew(live[name])
        case "release":
            Lease.objects.release(live[name])
        case "revoke":
            Lease.objects.filter(resource=name).revoke()


# What others refer to, and several at once


def protect(row: Any) -> None:
    """Make a table that Django does not know refer to ``row``."""
    table = row._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE the_{table} (key bigint REFERENCES {table} (id))")
        cursor.execute(f"INSERT INTO the_{table} VALUES ({row.pk})")


def test_rows_that_another_refers_to_keep_no_other(
    database_clock: DatabaseClock, work: Callable[..., Any]
) -> None:
    for name in ("crane:1", "crane:2", "crane:3", "crane:4"):
        Lease.objects.release(take(name))
        work(name, 60)
    protect(Lease.objects.get(resource="crane:1"))
    protect(OnceKey.objects.get(key="crane:2"))
    event = LeaseEvent.objects.filter(resource="crane:3").earliest("id")
    Receipt.objects.create(event=event)

    database_clock.advance(31 * DAY)
    assert prune(MONTH, batch=3) == Pruned(leases=3, events=6, once_keys=3)

    assert left() == ["crane:1"]
    assert OnceKey.objects.get().key == "crane:2"
    assert {event.resource for event in LeaseEvent.objects.all()} == {"crane:3"}

    Receipt.objects.all().delete()
    assert prune(MONTH, batch=1).events == 2


@pytest.mark.django_db(transaction=True)
def test_several_prune_at_once_and_delete_everything_once(database_clock: DatabaseClock) -> None:
    for number in range(24):
        Lease.objects.release(take(f"crane:{number}"))
    database_clock.advance(60 * DAY)

    def one(_: int) -> Pruned:
        try:
            return prune(MONTH, batch=3)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(one, range(4)))
    done.append(prune(MONTH))

    assert sum(each.leases for each in done) == 24
    assert sum(each.events for each in done) == 48
    assert not Lease.objects.exists()
    assert not LeaseEvent.objects.exists()


# The command


def test_the_command_tells_what_it_deleted(
    database_clock: DatabaseClock, capsys: pytest.CaptureFixture[str]
) -> None:
    Lease.objects.release(take("crane:1"))
    database_clock.advance(2 * DAY)

    call_command("prune_leases")
    call_command("prune_leases", "--days", "1", "--batch", "1")

    assert capsys.readouterr().out.splitlines() == [
        "Pruned 0 leases, 0 events, 0 results kept by once, 0 audit entries.",
        "Pruned 1 leases, 2 events, 0 results kept by once, 0 audit entries.",
    ]
