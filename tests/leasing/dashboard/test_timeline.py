"""The terms of a lease, as its events and its row tell them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasing.dashboard.timeline import Term, Timeline, timeline
from leasing.exceptions import LeaseLost
from leasing.models import Lease, LeaseEvent
from leasing.web.paging import page_of
from tests.leasing.conftest import DatabaseClock

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("database_clock")]


def take(holder: str, ttl: float = 30) -> Lease:
    return Lease.objects.acquire("crane", holder=holder, ttl=ttl)


def read(lease: Lease, now: datetime, most: int = 50) -> Timeline:
    """The timeline of ``lease`` as its page shows it."""
    page = page_of(LeaseEvent.objects.filter(resource=lease.resource), None, most)
    return timeline(lease, now, page.rows, has_more=bool(page.older))


def seen(database_clock: DatabaseClock, **options: Any) -> Timeline:
    return read(Lease.objects.get(resource="crane"), database_clock.now, **options)


def reported(
    term: Term, database_clock: DatabaseClock
) -> tuple[str, str, float | None, float | None]:
    """Holder and end of a term, and its two moments in seconds from now."""

    def ago(moment: Any) -> float | None:
        return None if moment is None else (moment - database_clock.now).total_seconds()

    return term.holder, term.end, ago(term.began_at), ago(term.ended_at)


def test_each_term_has_its_holder_its_moments_and_its_end(database_clock: DatabaseClock) -> None:
    Lease.objects.release(take("ann"))
    database_clock.advance(10)
    take("bob")
    database_clock.advance(40)  # expired ten seconds ago
    take("cid")
    database_clock.advance(5)
    Lease.objects.filter(resource="crane").revoke(reason="it hangs", by="olga")
    database_clock.advance(5)
    take("dan")
    database_clock.advance(10)

    shown = seen(database_clock)

    assert [reported(term, database_clock) for term in shown.terms] == [
        ("ann", "released", -70.0, -70.0),
        ("bob", "expired", -60.0, -30.0),
        ("cid", "revoked", -20.0, -15.0),
        ("dan", "held", -10.0, None),
    ]
    assert [term.is_takeover for term in shown.terms] == [False, False, True, False]
    assert (shown.terms[2].reason, shown.terms[2].actor) == ("it hangs", "olga")
    tokens = [term.fencing_token for term in shown.terms]
    assert tokens == sorted(set(tokens))
    assert (shown.since, shown.has_more) == (shown.terms[0].began_at, False)


def test_renewals_are_folded_into_a_count(database_clock: DatabaseClock) -> None:
    lease = take("ann")
    for _ in range(3):
        database_clock.advance(10)
        Lease.objects.renew(lease)

    (term,) = seen(database_clock).terms

    assert term.renewals == 3


def test_an_expired_term_that_nobody_took_over_has_ended(database_clock: DatabaseClock) -> None:
    take("ann")
    database_clock.advance(31)

    shown = seen(database_clock)

    assert reported(shown.terms[0], database_clock) == ("ann", "expired", -31.0, -1.0)


def test_a_refused_write_stands_on_the_term_it_came_from(database_clock: DatabaseClock) -> None:
    late = take("ann")
    database_clock.advance(31)
    take("bob")
    database_clock.advance(1)
    with pytest.raises(LeaseLost):
        Lease.objects.release(late)

    ann, bob = seen(database_clock).terms

    assert [moment for moment, _ in ann.refused] == [database_clock.now]
    assert bob.refused == []


def test_what_was_revoked_after_it_expired_ended_when_it_expired(
    database_clock: DatabaseClock,
) -> None:
    take("ann")
    database_clock.advance(40)
    Lease.objects.filter(resource="crane").revoke(by="olga")

    assert reported(seen(database_clock).terms[0], database_clock) == (
        "ann",
        "expired",
        -40.0,
        -10.0,
    )


def test_a_revocation_is_none_the_less_one_because_its_event_comes_later(
    database_clock: DatabaseClock,
) -> None:
    take("ann")
    Lease.objects.filter(resource="crane").revoke(by="olga")
    LeaseEvent._base_manager.filter(kind="revoked").update(
        at=database_clock.now + timedelta(milliseconds=9)
    )

    assert seen(database_clock).terms[0].end == "revoked"


def test_a_row_that_was_made_anew_leaves_a_term_without_an_end(
    database_clock: DatabaseClock,
) -> None:
    take("ann")
    Lease.objects.filter(resource="crane").delete()
    database_clock.advance(5)
    take("bob")
    lease = Lease.objects.get(resource="crane")

    shown = timeline(lease, database_clock.now, LeaseEvent.objects.all())

    assert [term.end for term in shown.terms] == ["unknown", "held"]

    lease.delete()
    free = Lease.objects.create(resource="crane")
    assert [t.end for t in timeline(free, database_clock.now, LeaseEvent.objects.all()).terms] == [
        "unknown",
        "unknown",
    ]


def test_so_many_events_are_read_and_the_rest_is_said_to_be_there(
    database_clock: DatabaseClock,
) -> None:
    for _ in range(5):
        Lease.objects.release(take("ann"))

    with CaptureQueriesContext(connection) as queries:
        lease = Lease.objects.get(resource="crane")
        shown = read(lease, database_clock.now, most=3)

    assert len(queries) == 2 and "LIMIT 4" in queries[1]["sql"]
    assert [(term.end, term.began_at is None) for term in shown.terms] == [
        ("released", True),
        ("released", False),
    ]
    assert shown.has_more


def test_a_lease_without_events_is_told_by_its_row(database_clock: DatabaseClock) -> None:
    take("ann")
    LeaseEvent._base_manager.all().delete()
    assert reported(seen(database_clock).terms[0], database_clock) == ("ann", "held", 0.0, None)

    Lease.objects.create(resource="new")
    assert read(Lease.objects.get(resource="new"), database_clock.now).terms == []
