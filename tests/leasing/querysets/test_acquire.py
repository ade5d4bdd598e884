"""Acquiring a named lease."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from leasing import querysets as leasable_rows
from leasing.db.dialects import lock as lock_rows
from leasing.exceptions import InvalidTTL, LeaseHeld, LeaseLost
from leasing.models import Leasable, Lease, LeaseEvent, LeaseState
from leasing.runtime.aio import drive
from leasing.runtime.clock import clock
from leasing.validation.terms import Terms
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import events, expire, just_before_the_update, stored, usurp
from tests.shop.models import Order

pytestmark = pytest.mark.django_db


def duration(lease: Lease) -> timedelta:
    assert lease.acquired_at is not None
    return lease.expires_at - lease.acquired_at


def acquire_by(request: uuid.UUID, resource: str = "crane:1", **chosen: Any) -> Lease:
    """Acquire ``resource`` as a request over HTTP that may be sent again, of the rows that are
    ``chosen``."""
    terms = replace(Terms.check(holder="ann"), request_id=request)
    return drive(Lease.objects.filter(**chosen).acquiring_named(resource, terms, 0))


def test_acquiring_a_new_name_creates_the_row_and_holds_it() -> None:
    lease = Lease.objects.acquire("crane:1", holder="ann", ttl=10)

    assert (lease.resource, lease.holder, lease.grants) == ("crane:1", "ann", 1)
    assert lease.ttl == timedelta(seconds=10)
    assert duration(lease) == timedelta(seconds=10)
    assert isinstance(lease.grant_id, uuid.UUID)
    assert (lease.renewals, lease.renewed_at, lease.released_at) == (0, None, None)
    assert list(Lease.objects.active()) == [lease]


def test_what_acquire_returns_is_what_the_database_has() -> None:
    lease = Lease.objects.acquire("crane:1", holder="ann")

    assert stored(lease) == {field: getattr(lease, field) for field in stored(lease)}


def test_a_held_lease_is_refused_and_the_error_names_holder_and_expiry() -> None:
    held = make_lease(resource="crane:1", holder="ann")

    with pytest.raises(LeaseHeld) as refusal:
        Lease.objects.acquire("crane:1", holder="bob")

    error = refusal.value
    assert (error.resource, error.holder, error.expires_at) == ("crane:1", "ann", held.expires_at)
    assert str(error) == f"crane:1 is held by ann until {held.expires_at.isoformat()}."
    assert events("crane:1") == ["acquired"]


def test_the_same_holder_cannot_acquire_twice() -> None:
    before = stored(make_lease(resource="crane:1", holder="ann"))

    with pytest.raises(LeaseHeld, match="held by ann"):
        Lease.objects.acquire("crane:1", holder="ann")

    assert stored(Lease.objects.get()) == before


def test_another_resource_is_another_lease() -> None:
    make_lease(resource="crane:1")

    assert Lease.objects.acquire("crane:2").grants == 1


def test_names_are_compared_case_sensitively() -> None:
    make_lease(resource="crane:a")

    assert Lease.objects.acquire("crane:A").grants == 1


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("state", ["expired", "released", "revoked"])
def test_what_is_over_can_be_acquired_by_the_next(state: str) -> None:
    first = make_lease(resource="crane:1", holder="ann", renewals=2, state=state)

    second = Lease.objects.acquire("crane:1", holder="bob", ttl=5)

    assert second.pk == first.pk
    assert second.holder == "bob"
    assert second.grants == 2
    assert second.grant_id != first.grant_id
    assert second.fencing_token > first.fencing_token
    assert (second.renewals, second.renewed_at, second.released_at) == (0, None, None)
    assert second.ttl == timedelta(seconds=5)


@pytest.mark.usefixtures("form")
def test_taking_over_an_expired_lease_is_recorded_with_its_previous_holder() -> None:
    make_lease(resource="crane:1", holder="ann", state="expired")

    lease = Lease.objects.acquire("crane:1", holder="bob")

    event = LeaseEvent.objects.first()
    assert event is not None
    assert (event.kind, event.holder, event.previous_holder) == ("taken_over", "bob", "ann")
    assert (event.grant_id, event.fencing_token) == (lease.grant_id, lease.fencing_token)
    assert (event.model, event.key) == ("leasing.lease", str(lease.pk))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("state", ["released", "revoked"])
def test_acquiring_what_was_given_back_is_no_takeover(state: str) -> None:
    make_lease(resource="crane:1", state=state)

    Lease.objects.acquire("crane:1")

    assert events("crane:1")[-1] == "acquired"


@pytest.mark.usefixtures("form")
def test_a_free_row_is_acquired_without_a_second_row() -> None:
    free = make_lease(resource="crane:1", state="free")

    assert Lease.objects.acquire("crane:1").pk == free.pk
    assert events("crane:1") == ["acquired"]


@pytest.mark.usefixtures("form")
def test_a_request_that_is_repeated_finds_the_grant_that_it_holds() -> None:
    make_lease(resource="crane:1", state="free")
    request = uuid.uuid4()

    first, again = acquire_by(request), acquire_by(request)

    assert again.grant_id == first.grant_id
    assert events("crane:1") == ["acquired"]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("end", [lambda lease: lease.release(), expire], ids=["release", "expiry"])
@pytest.mark.parametrize("chosen", [{}, {"priority": 0}], ids=["all", "a filter"])
def test_a_request_that_is_repeated_after_its_lease_ended_is_not_granted_twice(
    end: Callable[[Lease], object], chosen: dict[str, Any]
) -> None:
    request = uuid.uuid4()
    end(acquire_by(request, **chosen))

    with pytest.raises(LeaseLost):
        acquire_by(request, **chosen)

    assert events("crane:1").count("acquired") == Lease.objects.get().grants == 1


@pytest.mark.usefixtures("form")
def test_a_request_is_granted_what_another_request_has_released() -> None:
    first = acquire_by(uuid.UUID(int=0))
    first.release()

    second = acquire_by(uuid.UUID(int=1))

    assert second.grant_id not in (None, first.grant_id)
    assert second.grants == 2


def test_acquiring_touches_no_other_free_row() -> None:
    other = make_lease(state="free")

    Lease.objects.acquire("crane:x")

    assert stored(other)["grants"] == 0


@pytest.mark.usefixtures("portable")
def test_only_the_row_that_can_be_acquired_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held row is not locked: its renewal would be skipped for it."""
    make_lease(resource="crane:1")
    locked: list[int] = []

    def lock(rows: Any, **how: Any) -> Any:
        locked.extend(rows.values_list("pk", flat=True))
        return rows

    monkeypatch.setattr(leasable_rows, "lock", lock)
    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1")

    assert locked == []


# The deadline


def test_the_ttl_defaults_to_the_setting() -> None:
    assert Lease.objects.acquire("crane:1").ttl == timedelta(seconds=30)
    with override_settings(LEASING={"TTL": 7}):
        assert Lease.objects.acquire("crane:2").ttl == timedelta(seconds=7)


@pytest.mark.parametrize("ttl", [1, 86400, 2.5, timedelta(minutes=1)])
def test_a_ttl_within_the_bounds_is_taken(ttl: float | timedelta) -> None:
    lease = Lease.objects.acquire("crane:1", ttl=ttl)

    wanted = ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl)
    assert duration(lease) == wanted


@pytest.mark.parametrize("ttl", [0, -1, 0.999, 86401, timedelta(days=2)])
def test_a_ttl_out_of_bounds_is_refused(ttl: float | timedelta) -> None:
    with pytest.raises(InvalidTTL, match="between 1 and 86400 seconds"):
        Lease.objects.acquire("crane:1", ttl=ttl)

    assert not Lease.objects.exists()


@pytest.mark.usefixtures("form")
def test_a_lease_is_held_until_its_expiry_and_free_from_it_on(
    database_clock: DatabaseClock,
) -> None:
    first = make_lease(resource="crane:1", holder="ann", ttl=30)

    database_clock.advance(30 - 0.000001)
    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1", holder="bob")
    database_clock.now = first.expires_at
    second = Lease.objects.acquire("crane:1", holder="bob")

    assert second.acquired_at == first.expires_at


# Someone is faster


@pytest.mark.usefixtures("form")
def test_whoever_takes_the_row_between_our_look_and_our_update_keeps_it() -> None:
    lease = make_lease(resource="crane:1", state="free")

    with (
        just_before_the_update(lambda: usurp(lease)),
        pytest.raises(LeaseHeld, match="held by thief"),
    ):
        Lease.objects.acquire("crane:1", holder="ann")

    assert stored(lease)["holder"] == "thief"
    assert events("crane:1") == []


@pytest.mark.usefixtures("portable")
def test_a_row_that_someone_else_is_about_to_take_is_refused_after_three_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_lease(resource="crane:1", state="free")
    tries = []

    def lock(rows: Any, **how: Any) -> Any:
        tries.append(how["skip_locked"])
        return rows.none()

    monkeypatch.setattr(leasable_rows, "lock", lock)
    with pytest.raises(LeaseHeld, match=r"^crane:1 is being acquired by someone else\.$"):
        Lease.objects.acquire("crane:1")

    assert tries == [True] * 3


@pytest.mark.usefixtures("portable")
def test_a_row_deleted_at_the_wrong_moment_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_lease(resource="crane:1", state="expired")
    lock = lock_rows

    def lock_once_deleted(rows: Any, **how: Any) -> Any:
        monkeypatch.setattr(leasable_rows, "lock", lock)
        Lease.objects.all().delete()
        return lock(rows, **how)

    monkeypatch.setattr(leasable_rows, "lock", lock_once_deleted)

    assert Lease.objects.acquire("crane:1").grants == 1


# The database


@pytest.mark.usefixtures("portable")
def test_acquiring_a_row_that_exists_takes_four_statements_in_one_transaction(
    django_assert_max_num_queries: Any,
) -> None:
    make_lease(resource="crane:1", state="free")

    with django_assert_max_num_queries(6) as captured:
        Lease.objects.acquire("crane:1")

    assert [q["sql"].split()[0] for q in captured.captured_queries] == [
        "SAVEPOINT",
        "SELECT",
        "UPDATE",
        "SELECT",
        "INSERT",
        "RELEASE",
    ]


@pytest.mark.usefixtures("on_postgresql")
def test_on_postgresql_acquiring_and_releasing_take_a_statement_each(
    django_assert_num_queries: Any,
) -> None:
    make_lease(resource="crane:1", state="free")

    with django_assert_num_queries(1):
        lease = Lease.objects.acquire("crane:1")
    with django_assert_num_queries(1):
        Lease.objects.release(lease)

    assert events("crane:1") == ["acquired", "released"]


@pytest.mark.usefixtures("on_postgresql")
def test_on_postgresql_a_request_is_granted_by_the_same_statement(
    django_assert_num_queries: Any,
) -> None:
    """Its id changes the text, but not with each request: that would be compiled each time."""
    make_lease(resource="crane:1", state="free")
    make_lease(resource="crane:2", state="free")

    with django_assert_num_queries(2) as captured:
        acquire_by(uuid.uuid4())
        acquire_by(uuid.uuid4(), "crane:2")

    assert events("crane:1") == events("crane:2") == ["acquired"]
    assert [each["sql"].split()[0] for each in captured.captured_queries] == ["WITH", "WITH"]


def test_the_deadline_is_the_databases(database_clock: DatabaseClock) -> None:
    """No wall clock of Python takes part: here the database lives in another year."""
    lease = Lease.objects.acquire("crane:1", ttl=30)

    assert lease.acquired_at == database_clock.now


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(lambda: [Lease.objects.acquire("crane:1")], id="one by name"),
        pytest.param(lambda: Lease.objects.acquire_many(["crane:1", "crane:2"]), id="many"),
        pytest.param(lambda: [Order.objects.acquire(Order.objects.get())], id="one row"),
        pytest.param(lambda: Order.objects.claim(), id="whatever is free"),
    ],
)
def test_trust_counts_from_before_the_statement_that_grants(
    take: Callable[[], list[Leasable]],
) -> None:
    """Or it would outlast the database's term by the time that the answer took."""
    for name in ("crane:1", "crane:2"):
        make_lease(resource=name, state=LeaseState.RELEASED)
    Order.objects.create(article="anchor")
    sent: list[float] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        if "acquired_at" in sql:
            sent.append(clock())
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        taken = take()

    assert {row.sent_at <= sent[-1] for row in taken} == {True}
