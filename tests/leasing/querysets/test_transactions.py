"""Transactions in which a lease must not be taken, and writes that a rollback must not undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from leasing.db.dialects import durable, in_transaction, refuse_transaction
from leasing.exceptions import LeaseInTransaction, LeaseLost
from leasing.holding.keeper import Keeper
from leasing.models import Lease
from leasing.stores.rows import write_apart
from tests.factories import make_lease
from tests.leasing.support import events, grants, row_hold, stored, usurp

VERBS: list[Any] = [
    pytest.param(lambda lease: Lease.objects.acquire("crane:2"), id="acquire"),
    pytest.param(lambda lease: Lease.objects.hold("crane:2").__enter__(), id="hold"),
    pytest.param(lambda lease: Lease.objects.renew(lease), id="renew"),
    pytest.param(lambda lease: Lease.objects.none().claim(), id="claim of nothing"),
]


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_an_atomic_block_is_refused(verb: Callable[[Lease], object]) -> None:
    lease = make_lease()
    before = stored(lease)

    with pytest.raises(LeaseInTransaction, match="non_atomic_requests"), transaction.atomic():
        verb(lease)

    assert stored(lease) == before
    assert not Lease.objects.filter(resource="crane:2").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_a_nested_atomic_block_is_refused(verb: Callable[[Lease], object]) -> None:
    lease = make_lease()

    with transaction.atomic(), pytest.raises(LeaseInTransaction), transaction.atomic():
        verb(lease)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", VERBS)
def test_an_atomic_block_is_refused_outside_of_testcases_too(
    verb: Callable[[Lease], object],
) -> None:
    lease = make_lease()

    with pytest.raises(LeaseInTransaction), transaction.atomic():
        verb(lease)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", [*VERBS, lambda lease: Lease.objects.renew_many(grants(lease))])
def test_autocommit_off_is_refused(verb: Callable[[Lease], object]) -> None:
    lease = make_lease()
    transaction.set_autocommit(False)
    try:
        with pytest.raises(LeaseInTransaction):
            verb(lease)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert stored(lease)["renewals"] == 0


@pytest.mark.django_db
@pytest.mark.parametrize("verb", VERBS)
def test_a_function_that_is_atomic_as_a_whole_is_refused(
    verb: Callable[[Lease], object],
) -> None:
    """ATOMIC_REQUESTS does this to a view."""
    lease = make_lease()

    with pytest.raises(LeaseInTransaction):
        transaction.atomic(verb)(lease)


@pytest.mark.django_db(transaction=True)
def test_after_the_block_the_lease_can_be_taken() -> None:
    with pytest.raises(LeaseInTransaction), transaction.atomic():
        Lease.objects.acquire("crane:1")

    assert Lease.objects.acquire("crane:1").grants == 1


@pytest.mark.django_db(transaction=True)
def test_a_transaction_within_a_hold_is_what_is_meant(live_keeper: Keeper) -> None:
    with row_hold(live_keeper) as hold, transaction.atomic():
        hold.ensure()

    assert events("crane:1") == ["acquired", "released"]


@pytest.mark.django_db(transaction=True)
def test_a_hold_is_not_renewed_by_hand_inside_a_transaction(manual_keeper: Keeper) -> None:
    """Rolled back, the database would forget a renewal that the holder goes on believing."""
    with row_hold(manual_keeper) as hold:
        trusted_until = hold.trusted_until
        with pytest.raises(LeaseInTransaction), transaction.atomic():
            hold.renew()

        assert hold.trusted_until == trusted_until


@pytest.mark.django_db(transaction=True)
def test_a_rollback_undoes_a_release_and_the_holder_can_release_again() -> None:
    lease = make_lease(resource="crane:1")

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Lease.objects.release(lease)
        raise ZeroDivisionError
    assert Lease.objects.active().exists()
    Lease.objects.release(lease)

    assert events("crane:1") == ["acquired", "released"]


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_noted_although_the_caller_rolls_back(notes: Keeper) -> None:
    lease = make_lease(resource="crane:1")
    usurp(lease)

    with pytest.raises(LeaseLost), transaction.atomic():
        Lease.objects.release(lease)
    assert events("crane:1") == ["acquired"]
    notes.write_notes()

    assert events("crane:1") == ["acquired", "refused"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_note_waits_for_no_lock_for_long(notes: Keeper) -> None:
    """The thread that writes it has renewals to do."""
    limits: list[Any] = []

    def note() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('lock_timeout')")
            limits.extend(cursor.fetchone())

    with transaction.atomic():
        write_apart("default", note)
    notes.write_notes()

    assert limits == ["1s"]


@pytest.mark.django_db(transaction=True)
def test_outside_of_transactions_a_refusal_is_noted_at_once(notes: Keeper) -> None:
    lease = make_lease(resource="crane:1")
    usurp(lease)

    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)

    assert events("crane:1") == ["acquired", "refused"]


@pytest.mark.django_db
def test_the_transaction_around_a_test_does_not_count() -> None:
    assert connection.in_atomic_block

    refuse_transaction("default")
    assert not in_transaction("default")
    with durable("default"):
        assert in_transaction("default")


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_revocation_is_none() -> None:
    lease = make_lease(resource="crane:1")
    before = stored(lease)

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Lease.objects.revoke()
        raise ZeroDivisionError

    assert stored(lease) == before
    assert events("crane:1") == ["acquired"]
