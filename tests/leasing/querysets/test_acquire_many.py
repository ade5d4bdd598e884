"""Several named leases at once: all or none, in one order."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from leasing.exceptions import (
    InvalidResource,
    LeaseHeld,
    LeaseInTransaction,
    LeaseLost,
)
from leasing.holding.term import Term
from leasing.models import Lease, LeaseEvent
from leasing.stores import portable
from leasing.stores.rows import TRIES
from leasing.testing.keeper import ManualKeeper
from tests.factories import make_lease
from tests.leasing.conftest import Sent
from tests.leasing.support import PATIENCE, OtherSession, events, usurp

pytestmark = pytest.mark.django_db


def resources(state: str) -> list[str]:
    rows: Any = getattr(Lease.objects, state)()
    return sorted(rows.values_list("resource", flat=True))


def stored_as(leases: list[Lease]) -> bool:
    """Return True if ``leases`` have the values of their rows."""
    columns = [field.attname for field in Lease._meta.concrete_fields]
    rows = Lease.objects.filter(pk__in=[lease.pk for lease in leases]).order_by("resource")
    return [[getattr(lease, name) for name in columns] for lease in leases] == [
        [getattr(row, name) for name in columns] for row in rows
    ]


# All


def test_names_may_contain_what_has_a_meaning_in_arrays() -> None:
    names = ['"quoted"', "{braces}", "a,b", "back\\slash", "NULL", "two words", "o'clock", "schön"]

    with Lease.objects.acquire_many(names) as leases:
        assert sorted(lease.resource for lease in leases) == sorted(names)
        assert resources("active") == sorted(names)
        assert {lease.grant_id.version for lease in leases if lease.grant_id} == {4}

    assert resources("released") == sorted(names)


def test_all_are_acquired_in_one_order_whatever_the_callers(sent: Sent) -> None:
    leases = Lease.objects.acquire_many(["b", "c", "a"], holder="ann", ttl=10)

    assert [lease.resource for lease in leases] == ["a", "b", "c"]
    assert {lease.holder for lease in leases} == {"ann"}
    assert {lease.ttl for lease in leases} == {timedelta(seconds=10)}
    assert len({lease.grant_id for lease in leases}) == 3
    assert resources("active") == ["a", "b", "c"]
    assert [(name, lease.resource) for name, lease, _ in sent] == [
        ("acquired", "a"),
        ("acquired", "b"),
        ("acquired", "c"),
    ]


def test_what_is_named_twice_is_acquired_once() -> None:
    assert len(Lease.objects.acquire_many(["a", "b", "a"])) == 2


def test_none_at_all_is_easy() -> None:
    with Lease.objects.acquire_many([]) as leases:
        assert leases == []
        leases.ensure()


def test_known_and_unknown_ones_go_together() -> None:
    make_lease(resource="b", state="released")
    make_lease(resource="d", state="expired")

    leases = Lease.objects.acquire_many(name for name in "abcd")

    assert [(lease.resource, lease.grants) for lease in leases] == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
        ("d", 2),
    ]
    assert events("d") == ["acquired", "taken_over"]


def test_each_is_granted_with_the_terms_that_were_asked_for(clocks: ManualKeeper) -> None:
    terms: dict[str, Any] = {"priority": 3, "grace": 5, "max_hold": 60, "metadata": {"why": "move"}}

    for lease in Lease.objects.acquire_many(["a", "b"], ttl=30, **terms):
        assert (lease.priority, lease.grace) == (3, timedelta(seconds=5))
        assert lease.ends_at == clocks.now + timedelta(seconds=60)
        assert lease.metadata == {"why": "move"}


@pytest.mark.usefixtures("form")
def test_all_are_granted_by_one_statement_in_the_order_of_their_names() -> None:
    make_lease(resource="b", state="free")
    make_lease(resource="a", state="free")
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        Lease.objects.acquire_many(["b", "a"])

    orders = ('ORDER BY "leasing_lease"."resource" ASC', 'ORDER BY t."resource"')
    assert [sql for sql in statements if any(order in sql for order in orders)]
    assert len([sql for sql in statements if "UPDATE " in sql.replace("KEY UPDATE", "")]) == 1


@pytest.mark.usefixtures("form")
def test_each_stands_as_it_is_stored(clocks: ManualKeeper) -> None:
    names = ["a", "b", "c"]
    with Lease.objects.acquire_many(names) as leases:
        assert stored_as(leases)
        clocks.advance(3)
    assert stored_as(leases)
    Lease.objects.filter(resource="b").revoke()
    clocks.advance(3)

    with (
        pytest.raises(LeaseLost, match="a was lost"),
        Lease.objects.acquire_many(names, max_hold=40) as leases,
    ):
        assert stored_as(leases)
        usurp(leases[0])
    assert stored_as(leases[1:])


# None


def test_one_that_is_held_leaves_all_as_they_were(sent: Sent) -> None:
    held = make_lease(resource="b", holder="ann")
    make_lease(resource="a", state="released")
    before = list(Lease.objects.order_by("id").values())
    noted = LeaseEvent.objects.count()
    sent.clear()

    with pytest.raises(LeaseHeld, match="^b is held by ann until") as refusal:
        Lease.objects.acquire_many(["a", "b"], holder="bob")

    assert (refusal.value.resource, refusal.value.expires_at) == ("b", held.expires_at)
    assert list(Lease.objects.order_by("id").values()) == before
    assert (LeaseEvent.objects.count(), sent) == (noted, [])


def test_new_names_beside_a_held_one_stay_free() -> None:
    make_lease(resource="b", holder="ann")

    with pytest.raises(LeaseHeld, match="held by ann"):
        Lease.objects.acquire_many(["a", "b", "c"])

    assert resources("active") == ["b"]
    assert not Lease.objects.filter(resource__in="ac", grants__gt=0).exists()


def test_one_in_its_grace_is_named_too(clocks: ManualKeeper) -> None:
    held = Lease.objects.acquire("b", holder="ann", ttl=10, grace=5)
    clocks.advance(12)

    with pytest.raises(LeaseHeld, match="^b is held by ann") as refusal:
        Lease.objects.acquire_many(["a", "b"])

    assert refusal.value.expires_at == held.expires_at + timedelta(seconds=5)
    assert resources("active") == []


def test_who_may_preempt_asks_the_holder_to_yield(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("b", holder="ann", ttl=10)

    with pytest.raises(LeaseHeld):
        Lease.objects.acquire_many(["a", "b"], holder="bob", priority=9, preempt_after=0)
    assert Lease.objects.get(resource="b").yield_to == "bob"
    clocks.advance(10)

    assert len(Lease.objects.acquire_many(["a", "b"], holder="bob", priority=9)) == 2


@pytest.mark.usefixtures("portable")
def test_what_somebody_else_is_about_to_take_is_tried_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_lease(resource="a", state="free")
    make_lease(resource="b", state="free")
    tries = []
    real = portable.grant

    def but_one(rows: Any, terms: Any, limit: Any, **key: Any) -> Any:
        tries.append(limit)
        return real(rows.filter(resource="a"), terms, limit, **key)

    monkeypatch.setattr(portable, "grant", but_one)
    with pytest.raises(LeaseHeld, match="^a, b is being acquired by someone else"):
        Lease.objects.acquire_many(["a", "b"])

    assert tries == [None] * TRIES
    assert resources("active") == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_locked_one_is_not_waited_for(other_session: OtherSession) -> None:
    make_lease(resource="a", state="free")
    other_session.lock(make_lease(resource="b", state="free"))

    with pytest.raises(LeaseHeld, match="being acquired by someone else"):
        Lease.objects.acquire_many(["a", "b"])

    assert resources("active") == []


def test_inside_a_transaction_none_is_granted() -> None:
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Lease.objects.acquire_many(["a", "b"])
    assert not Lease.objects.exists()


@pytest.mark.parametrize("names", ["crane", "a"])
def test_one_string_is_not_several_names(names: str) -> None:
    """Its letters would be."""
    with pytest.raises(InvalidResource, match="a list of names, not a string"):
        Lease.objects.acquire_many(names)


def test_one_unusable_name_spoils_all() -> None:
    with pytest.raises(InvalidResource):
        Lease.objects.acquire_many(["a", "b\n"])
    assert not Lease.objects.exists()


def test_there_is_no_waiting_for_several() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'wait'"):
        Lease.objects.acquire_many(["a", "b"], wait=5)  # type: ignore[call-arg]


# A block in which they are held


def test_in_the_block_all_are_renewed_and_after_it_released(clocks: ManualKeeper) -> None:
    with Lease.objects.acquire_many(["a", "b"], ttl=10) as leases:
        assert [hold.resource for hold in leases.holds] == ["a", "b"]
        clocks.advance(60)
        leases.ensure()
        assert resources("active") == ["a", "b"]

    assert resources("released") == ["a", "b"]
    assert leases.holds == []


def test_a_row_that_is_read_again_in_the_block_leaves_the_hold_its_term(
    clocks: ManualKeeper,
) -> None:
    with (
        pytest.raises(LeaseLost, match="a was lost"),
        Lease.objects.acquire_many(["a", "b"], holder="ann") as leases,
    ):
        known = leases[0].grant_id, leases[0].fencing_token, leases[0].expires_at
        usurp(leases[0])
        leases[0].refresh_from_db()
        (hold, _) = leases.holds
        assert (hold.grant_id, hold.fencing_token, hold.expires_at) == known
        assert (hold.holder, hold.valid) == ("ann", True)
        clocks.renew()
        assert not hold.valid


def test_a_row_that_is_read_again_and_somebody_elses_is_neither_released_nor_proved(
    clocks: ManualKeeper,
) -> None:
    """Before a renewal tells of it: what is ended is the grant of the block."""
    with (
        pytest.raises(LeaseLost, match="a was lost"),
        Lease.objects.acquire_many(["a", "b"], holder="ann") as leases,
    ):
        usurp(leases[0])
        leases[0].refresh_from_db()
        (hold, _) = leases.holds
        with pytest.raises(LeaseLost), hold.still_mine():
            pytest.fail("the body must not run")

    assert (resources("active"), resources("released")) == (["a"], ["b"])


def test_a_hold_whose_row_is_read_again_and_somebody_elses_is_not_released(
    clocks: ManualKeeper,
) -> None:
    with Lease.objects.acquire_many(["a"], holder="ann") as leases:
        usurp(leases[0])
        leases[0].refresh_from_db()
        with pytest.raises(LeaseLost, match="a was lost"):
            leases.holds[0].release()

    assert resources("active") == ["a"]
    refused = LeaseEvent.objects.get(resource="a", kind="refused")
    assert refused.holder == "ann"


def test_without_the_block_nobody_renews_them(clocks: ManualKeeper) -> None:
    Lease.objects.acquire_many(["a", "b"], ttl=10)
    clocks.advance(10)

    assert resources("expired") == ["a", "b"]


def test_one_lost_is_told_after_the_others_were_released(clocks: ManualKeeper) -> None:
    holds: list[Term] = []
    with (
        pytest.raises(LeaseLost, match="b was lost: it was revoked"),
        Lease.objects.acquire_many(["a", "b", "c"]) as leases,
    ):
        holds += leases.holds
        Lease.objects.filter(resource="b").revoke()
        clocks.renew()
        assert [hold.valid for hold in holds] == [True, False, True]
        with pytest.raises(LeaseLost, match="b was lost"):
            leases.ensure()

    assert resources("active") == []
    assert events("a") == events("c") == ["acquired", "released"]


def test_one_taken_over_is_left_to_whoever_has_it(clocks: ManualKeeper) -> None:
    with (
        pytest.raises(LeaseLost, match="thief has held it"),
        Lease.objects.acquire_many(["a", "b"]),
    ):
        usurp(Lease.objects.get(resource="a"))

    assert resources("active") == ["a"]
    assert Lease.objects.get(resource="a").holder == "thief"


def test_a_block_that_fails_releases_all_and_hides_no_error(clocks: ManualKeeper) -> None:
    with pytest.raises(KeyError), Lease.objects.acquire_many(["a", "b"]):
        Lease.objects.filter(resource="a").revoke()
        raise KeyError

    assert resources("active") == []


def test_the_block_is_for_once(clocks: ManualKeeper) -> None:
    """Their terms are over: what looked held the second time would be anybody's."""
    leases = Lease.objects.acquire_many(["a"])
    with leases, pytest.raises(RuntimeError, match="been held already"), leases:
        pytest.fail("the body must not run")
    with pytest.raises(RuntimeError, match="been held already"), leases:
        pytest.fail("the body must not run")


# Races


@pytest.mark.django_db(transaction=True)
def test_eight_threads_in_opposite_orders_do_not_block_each_other() -> None:
    """Each takes what it gets, in an order of its own; nobody ever holds what another has."""
    names = [f"crane:{number}" for number in range(4)]
    start = threading.Barrier(8)
    inside: dict[str, int] = dict.fromkeys(names, 0)
    clashes: list[str] = []
    wins = [0] * 8

    def work(number: int) -> None:
        own = random.Random(number)
        order = names if number % 2 else names[::-1]
        try:
            start.wait(PATIENCE)
            for _ in range(6):
                try:
                    with Lease.objects.acquire_many(own.sample(order, 3), ttl=60) as leases:
                        for lease in leases:
                            inside[lease.resource] += 1
                            if inside[lease.resource] > 1:
                                clashes.append(lease.resource)
                        wins[number] += 1
                        for lease in leases:
                            inside[lease.resource] -= 1
                except LeaseHeld:
                    continue
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as crew:
        for done in [crew.submit(work, number) for number in range(8)]:
            done.result(PATIENCE)

    assert clashes == []
    assert sum(wins) > 0
    assert resources("active") == []
