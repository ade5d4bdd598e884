"""Giving several rows back at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from django.db import connection

from leasing import signals
from leasing.models import Lease, LeaseEvent
from tests.factories import make_leases
from tests.leasing.conftest import Sent
from tests.leasing.support import (
    OtherSession,
    events,
    expire,
    revoke_ahead_of_the_clock,
    stored,
    usurp,
)
from tests.shop.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("form")]


def test_all_are_free_at_once_noted_and_told(sent: Sent) -> None:
    leases = make_leases(3)
    sent.clear()

    assert Lease.objects.release_many(leases) == {}

    assert Lease.objects.released().count() == 3
    for lease in leases:
        assert stored(lease) == {name: getattr(lease, name) for name in lease.verb_columns}
        assert events(lease.resource) == ["acquired", "released"]
    reported = [(name, lease.pk) for name, lease, _ in sent]
    assert sorted(reported) == [("released", lease.pk) for lease in leases]
    last = LeaseEvent.objects.filter(kind="released").order_by("id").last()
    assert last is not None
    ours = next(lease for lease in leases if lease.resource == last.resource)
    assert (last.model, last.key) == ("leasing.lease", str(ours.pk))
    assert (last.holder, last.grant_id) == (ours.holder, ours.grant_id)
    assert last.fencing_token == ours.fencing_token


def test_none_at_all_is_easy() -> None:
    assert Lease.objects.release_many([]) == {}


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        pytest.param(usurp, "thief has held it since", id="grant"),
        pytest.param(revoke_ahead_of_the_clock, "it was revoked", id="released"),
        pytest.param(expire, "it expired at", id="deadline"),
        pytest.param(lambda lease: lease.delete(), "its row is gone", id="key"),
    ],
)
def test_one_that_is_over_is_lost_alone_and_changes_nothing(meanwhile: Any, reason: str) -> None:
    fine, over = make_leases(2)
    meanwhile(Lease.objects.get(pk=over.pk))
    left = list(Lease.objects.filter(pk=over.pk).values())

    losses = Lease.objects.release_many([over, fine])

    assert list(losses) == [over.pk]
    assert losses[over.pk].reason.startswith(reason)
    assert list(Lease.objects.filter(pk=over.pk).values()) == left
    assert stored(fine)["released_at"] is not None


def test_each_proves_its_own_grant() -> None:
    """Keys and grants go in pairs: the grant of another of these rows proves nothing."""
    one, two = make_leases(2)
    crossed = [copy.copy(one), copy.copy(two)]
    crossed[0].grant_id, crossed[1].grant_id = two.grant_id, one.grant_id

    assert set(Lease.objects.release_many(crossed)) == {one.pk, two.pk}
    assert Lease.objects.active().count() == 2


def test_copies_of_the_rows_stay() -> None:
    one, two, twin = make_leases(3)
    Lease.objects.filter(pk=twin.pk).update(grant_id=one.grant_id)

    Lease.objects.release_many([one, two])

    assert stored(twin)["released_at"] is None


@pytest.mark.parametrize("count", [1, 2])
def test_rows_that_the_caller_has_made_may_have_their_keys_as_text(count: int, sent: Sent) -> None:
    made = [Lease(pk=str(lease.pk), grant_id=lease.grant_id) for lease in make_leases(count)]
    sent.clear()

    assert Lease.objects.release_many(made) == {}

    assert Lease.objects.released().count() == count
    assert sorted(lease.pk for _, lease, _ in sent) == sorted(int(lease.pk) for lease in made)


def test_what_was_given_back_before_is_no_loss() -> None:
    one, two = make_leases(2)
    again = copy.copy(one)
    Lease.objects.release(one)

    assert Lease.objects.release_many([again, two]) == {}
    assert events(one.resource) == ["acquired", "released"]


def test_rows_of_any_model_are_given_back_together() -> None:
    rows = [Order.objects.create(article="tea") for _ in range(3)]
    claimed = Order.objects.claim(3)

    assert Order.objects.release_many(claimed) == {}
    for row in rows:
        assert events(f"shop.order:{row.pk}") == ["acquired", "released"]


def test_a_block_of_many_ends_with_one_statement(form: str, sent: Sent) -> None:
    if form == "portable":
        return
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    Lease.objects.acquire_many(["a", "b", "c"]).give_back()
    with connection.execute_wrapper(note), Lease.objects.acquire_many(["a", "b", "c"]):
        assert len(statements) == 1
    assert len(statements) == 2
    assert [name for name, *_ in sent] == [*["acquired"] * 3, *["released"] * 3] * 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_one_that_somebody_has_locked_is_waited_for(other_session: OtherSession) -> None:
    fine, busy = make_leases(2)
    other_session.lock(busy)
    heard: list[Any] = []

    def unlock(lease: Any, **details: Any) -> None:
        heard.append(lease.pk)
        other_session.commit()

    signals.released.connect(unlock)
    try:
        losses = Lease.objects.release_many([fine, busy])
    finally:
        signals.released.disconnect(unlock)

    assert losses == {}
    assert heard[-1] == busy.pk
    assert Lease.objects.released().count() == 2
