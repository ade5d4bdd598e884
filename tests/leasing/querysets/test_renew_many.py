"""Renewing many leases in one statement, as the keeper does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql import psycopg_any

from leasing.db.dialects import lock as lock_rows
from leasing.exceptions import LeaseInTransaction
from leasing.models import Lease
from leasing.store import Renewal
from leasing.stores import portable
from tests.factories import grant_id_of, make_lease, make_leases
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import (
    events,
    expire,
    grants,
    revoke_ahead_of_the_clock,
    stored,
    usurp,
)

pytestmark = pytest.mark.django_db


@pytest.mark.usefixtures("form")
def test_all_are_renewed_and_the_answer_has_their_new_deadlines(
    database_clock: DatabaseClock,
) -> None:
    leases = make_leases(3, ttl=30)

    database_clock.advance(10)
    answer = Lease.objects.renew_many(grants(*leases))

    assert answer.lost == {}
    assert answer.renewed == {
        lease.pk: Renewal(stored(lease)["expires_at"], remaining=30) for lease in leases
    }
    for lease in leases:
        lease.refresh_from_db()
        assert lease.expires_at - database_clock.now == lease.ttl
        assert (lease.renewals, lease.renewed_at) == (1, database_clock.now)


@pytest.mark.usefixtures("form")
def test_each_is_renewed_by_its_own_ttl(database_clock: DatabaseClock) -> None:
    short, long = make_lease(ttl=10), make_lease(ttl=60)

    database_clock.advance(5)
    answer = Lease.objects.renew_many(grants(short, long))

    gained = {
        key: ((renewal.expires_at - database_clock.now).total_seconds(), renewal.remaining)
        for key, renewal in answer.renewed.items()
    }
    assert gained == {short.pk: (10, 10), long.pk: (60, 60)}


@pytest.mark.usefixtures("form")
def test_a_renewal_never_brings_a_deadline_nearer(database_clock: DatabaseClock) -> None:
    lease = make_lease()

    database_clock.advance(-5)
    answer = Lease.objects.renew_many(grants(lease))

    assert answer.renewed == {lease.pk: Renewal(lease.expires_at, remaining=35)}


@pytest.mark.usefixtures("form")
def test_of_many_the_one_at_its_deadline_comes_too_late(database_clock: DatabaseClock) -> None:
    database_clock.advance(0.5)
    late, fine = make_lease(ttl=10), make_lease(ttl=20)

    database_clock.advance(10)
    answer = Lease.objects.renew_many(grants(late, fine))

    assert (set(answer.renewed), set(answer.lost)) == ({fine.pk}, {late.pk})


@pytest.mark.usefixtures("form")
def test_what_was_lost_is_told_with_the_reason_and_the_rest_is_renewed() -> None:
    fine, expired, taken, released, revoked, gone = leases = make_leases(6)
    expire(expired)
    usurp(taken)
    Lease.objects.release(released)
    revoke_ahead_of_the_clock(revoked)
    Lease.objects.filter(resource=gone.resource).delete()

    answer = Lease.objects.renew_many(grants(*leases))

    assert set(answer.renewed) == {fine.pk}
    begins = {
        expired.pk: "it expired at ",
        taken.pk: "thief has held it since ",
        released.pk: "it was revoked",
        revoked.pk: "it was revoked",
        gone.pk: "its row is gone",
    }
    assert answer.lost.keys() == begins.keys()
    assert all(answer.lost[key].startswith(begins[key]) for key in begins)


@pytest.mark.usefixtures("portable")
def test_rows_that_are_locked_elsewhere_are_in_neither_and_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine, busy = make_leases(2)
    before = stored(busy)

    def lock(rows: Any, **how: Any) -> Any:
        assert how == {"skip_locked": True}
        return rows.exclude(pk=busy.pk)

    monkeypatch.setattr(portable, "lock", lock)
    answer = Lease.objects.renew_many(grants(fine, busy))

    assert (set(answer.renewed), answer.lost) == ({fine.pk}, {})
    assert stored(busy) == before


@pytest.mark.usefixtures("portable")
def test_a_row_that_is_locked_elsewhere_but_over_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease = make_lease()
    usurp(lease)
    monkeypatch.setattr(portable, "lock", lambda rows, **how: rows.none())

    assert set(Lease.objects.renew_many(grants(lease)).lost) == {lease.pk}


@pytest.mark.usefixtures("portable")
def test_only_our_own_rows_are_locked_in_the_order_of_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, taken, last, strange = make_leases(4)
    mine = grants(last, taken, first)
    usurp(taken)
    locked: list[int] = []

    def lock(rows: Any, **how: Any) -> Any:
        assert rows.query.order_by == ("pk",)
        locked.extend(rows.values_list("pk", flat=True))
        return lock_rows(rows, **how)

    monkeypatch.setattr(portable, "lock", lock)
    Lease.objects.renew_many(mine)

    assert locked == [first.pk, last.pk]
    assert stored(strange)["renewals"] == 0


@pytest.mark.usefixtures("form")
def test_keys_and_grants_are_never_matched_crosswise() -> None:
    one, two = make_leases(2)

    answer = Lease.objects.renew_many({one.pk: grant_id_of(two), two.pk: grant_id_of(one)})

    assert answer.renewed == {}
    assert set(answer.lost) == {one.pk, two.pk}


@pytest.mark.usefixtures("form")
def test_nothing_to_renew_is_no_error() -> None:
    answer = Lease.objects.renew_many({})

    assert (answer.renewed, answer.lost) == ({}, {})


def test_the_ledger_hears_nothing_of_renewals() -> None:
    lease = make_lease(resource="crane:1")

    Lease.objects.renew_many(grants(lease))

    assert events("crane:1") == ["acquired"]


@pytest.mark.usefixtures("form")
def test_a_renewal_inside_a_transaction_is_refused() -> None:
    """Rolled back it would be undone, and its holder would go on believing."""
    lease = make_lease()

    with pytest.raises(LeaseInTransaction), transaction.atomic():
        Lease.objects.renew_many(grants(lease))

    assert stored(lease)["renewals"] == 0


@pytest.mark.usefixtures("portable")
def test_no_statement_of_it_runs_longer_than_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[tuple[str, float, bool]] = []

    def limit(using: str, seconds: float) -> None:
        limits.append((using, seconds, connection.in_atomic_block))

    monkeypatch.setattr(portable, "limit_waiting", limit)
    Lease.objects.renew_many({}, timeout=2.5)

    assert limits == [("default", 2.5, True)]


@pytest.mark.usefixtures("portable")
def test_a_batch_costs_as_many_statements_as_one_row(
    django_assert_max_num_queries: Any,
) -> None:
    leases = make_leases(20)

    with django_assert_max_num_queries(6) as captured:
        Lease.objects.renew_many(grants(*leases))

    kinds = [query["sql"].split()[0] for query in captured.captured_queries]
    assert [kind for kind in kinds if kind in ("SELECT", "UPDATE")][-3:] == [
        "SELECT",
        "UPDATE",
        "SELECT",
    ]


@pytest.mark.django_db(transaction=True)
def test_a_batch_is_one_message_to_postgresql_with_its_time_limit(
    form: str, django_assert_num_queries: Any
) -> None:
    if form == "portable":
        return
    leases = make_leases(20)

    with django_assert_num_queries(1) as captured:
        answer = Lease.objects.renew_many(grants(*leases), timeout=2.5)

    assert set(answer.renewed) == {lease.pk for lease in leases}
    assert "set_config(name, '2500', true)" in captured.captured_queries[0]["sql"]


@pytest.fixture(params=["parameters bound by the server", "psycopg2"])
def one_statement_a_message(
    request: pytest.FixtureRequest, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    options = dict(connection.settings_dict["OPTIONS"])
    if request.param == "psycopg2":
        monkeypatch.setattr(psycopg_any, "is_psycopg3", False)
    else:
        options["server_side_binding"] = True
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.close()
    yield
    connection.close()


@pytest.mark.usefixtures("on_postgresql", "one_statement_a_message")
def test_where_messages_hold_one_statement_a_batch_is_a_transaction(
    django_assert_num_queries: Any,
) -> None:
    lease = make_lease()

    with django_assert_num_queries(4) as captured:
        answer = Lease.objects.renew_many(grants(lease))

    assert set(answer.renewed) == {lease.pk}
    begin, limit, renew, commit = (query["sql"] for query in captured.captured_queries)
    assert (begin, commit) == ("BEGIN", "COMMIT")
    assert "set_config" in limit
    assert "SKIP LOCKED" in renew
