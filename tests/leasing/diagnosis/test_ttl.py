"""A ttl is computed from recorded terms, or refused where too little is recorded."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasing.diagnosis.ttl import (
    FEWEST,
    NEWEST,
    ROUND_TRIPS,
    Heartbeats,
    History,
    Sample,
    TooFewSamples,
    history_of_lease,
    least_ttl,
    spare,
    suggest,
)
from leasing.holding.term import longest_pause, margin
from leasing.models import EventKind, Lease, LeaseEvent
from tests.factories import make_lease

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def terms_of(lease: Lease, lengths: list[float], end: str = EventKind.RELEASED) -> None:
    """Write the events of terms of ``lease`` that had these lengths."""
    events = []
    for length in lengths:
        grant = uuid.uuid4()
        for kind, at in ((EventKind.ACQUIRED, NOON), (end, later(length))):
            events.append(LeaseEvent.of(lease, kind, grant_id=grant, at=at))
    LeaseEvent.objects.bulk_create(events)


def history(lengths: list[float], heartbeats: list[Heartbeats] | None = None) -> History:
    return History("x", "term", lengths, 0, heartbeats or [], "lease", 30.0, "default")


def beats(renewals: int, renewed_after: float, lasted: float | None, ttl: float = 30) -> Heartbeats:
    until = None if lasted is None else later(lasted)
    return Heartbeats(NOON, later(renewed_after), renewals, timedelta(seconds=ttl), until)


@pytest.mark.parametrize(
    ("heartbeats", "delay"),
    [
        (beats(3, 30, 35), 0),  # every ten seconds, as planned
        (beats(3, 36, 40), 2),  # two seconds late on average
        (beats(3, 30, 46), 4.5),  # the last came 11.5 s ago at most
        (beats(3, 36, 99), 51.5),
        (beats(3, 30, None), 0),  # nobody was there to renew it
        (beats(9, 30, 31), 0),  # renewed by hand, more often
    ],
)
def test_a_delay_is_what_exceeds_the_planned_pause(heartbeats: Heartbeats, delay: float) -> None:
    assert heartbeats.delay() == pytest.approx(delay)


@pytest.mark.parametrize("lasting", [0.0, 0.4, 3.0, 59.9, 4_000.0])
@pytest.mark.parametrize("is_renewed", [False, True])
def test_the_least_ttl_is_long_enough_and_a_second_less_is_not(
    lasting: float, is_renewed: bool
) -> None:
    def has_room(ttl: float) -> bool:
        return ttl >= lasting + margin(ttl) + (longest_pause(ttl) if is_renewed else 0)

    ttl = least_ttl(lasting, is_renewed=is_renewed)

    assert has_room(ttl)
    assert ttl == 1 or not has_room(ttl - 1)


def test_a_renewal_interval_that_is_set_is_the_pause(settings: Any) -> None:
    settings.LEASING = {"RENEW_EVERY": 1, "JITTER": 0, "MARGIN": 0.5}

    assert least_ttl(9, is_renewed=True) == 11


def test_one_in_a_hundred_exceeds_the_p99() -> None:
    sample = Sample.of([float(n) for n in range(200, 0, -1)])

    assert sample == Sample(200, 198.0, 200.0)


@pytest.mark.django_db
def test_work_counts_where_too_little_was_renewed() -> None:
    few = [beats(1, 10, 11)] * (FEWEST - 1)

    suggestion = suggest(history([12.0] * FEWEST, few))

    assert suggestion.heartbeat is None
    assert suggestion.ttl == 13


@pytest.mark.django_db
def test_heartbeats_count_where_enough_was_renewed() -> None:
    suggestion = suggest(history([4_000.0] * FEWEST, [beats(1, 12, 13)] * FEWEST))

    assert suggestion.work == Sample(FEWEST, 4_000.0, 4_000.0)
    assert suggestion.heartbeat and suggestion.heartbeat.p99 == pytest.approx(2)
    assert suggestion.ttl == 4
    assert spare(4) >= 2


@pytest.mark.django_db
def test_too_few_samples_are_refused_with_their_number() -> None:
    with pytest.raises(TooFewSamples, match=r"on x .* 99 terms that ended .* of 1 lease\. 100"):
        suggest(history([1.0] * (FEWEST - 1), [beats(1, 10, 11)]))


@pytest.mark.django_db
def test_the_terms_of_a_lease_are_those_that_it_released() -> None:
    lease, other = make_lease(), make_lease()
    terms_of(lease, [5.0, 7.0])
    terms_of(lease, [60.0], EventKind.TAKEN_OVER)  # the next grant, of another holder
    terms_of(lease, [90.0], EventKind.REVOKED)
    terms_of(other, [99.0])

    found = history_of_lease(lease)

    assert sorted(found.lengths) == [5.0, 7.0]
    assert found.lost == 1
    assert found.ttl == 30


@pytest.mark.django_db
def test_leases_of_rows_with_the_same_name_are_others() -> None:
    lease = make_lease()
    terms_of(lease, [5.0])
    event = LeaseEvent.of(lease, EventKind.RELEASED)
    grant = uuid.uuid4()
    for kind in (EventKind.ACQUIRED, EventKind.RELEASED):
        event = LeaseEvent.of(lease, kind, grant_id=grant)
        event.model = "shop.order"
        event.save()

    assert history_of_lease(lease).lengths == [5.0]


@pytest.mark.django_db
def test_heartbeats_are_those_of_leases_that_were_renewed() -> None:
    held = make_lease(renewals=2)
    released = make_lease(renewals=1, state="released")
    expired = make_lease(renewals=1, state="expired")
    make_lease()

    rows: dict[Any, Any] = {row[0]: row for row in Lease.objects.heartbeats(NEWEST)}

    assert len(rows) == 3
    assert rows[held.acquired_at][2] == 2
    assert rows[held.acquired_at][4] is not None
    assert rows[released.acquired_at][4] == released.released_at
    assert rows[expired.acquired_at][4] is None
    assert len(Lease.objects.heartbeats(1)) == 0  # the newest was not renewed


@pytest.mark.django_db
def test_the_history_is_two_statements_with_a_limit() -> None:
    lease = make_lease()

    with CaptureQueriesContext(
        connection,
    ) as queries:
        history_of_lease(lease)

    assert [f"LIMIT {NEWEST}" in query["sql"] for query in queries] == [True, True]


@pytest.mark.django_db
def test_the_command_prints_a_ttl_and_what_it_is_made_of() -> None:
    lease = make_lease(resource="stock")
    terms_of(lease, [4.0] * 99 + [8.0])

    printed = ran("stock")
    as_json = json.loads(ran("stock", "--json"))

    assert "stock: a ttl of 5 s is suggested; the latest had 30 s." in printed
    assert "Without renewals, one in a hundred terms outlasts it." in printed
    assert "fewer than 100 leases: not used" in printed
    assert as_json["ttl"] == 5.0
    assert as_json["current_ttl"] == 30.0
    assert as_json["work"] == {"samples": 100, "p99": 4.0, "max": 8.0}
    assert as_json["heartbeat"] is None
    assert as_json["round_trip"]["samples"] == ROUND_TRIPS


@pytest.mark.django_db
def test_the_command_says_if_no_lease_could_have_the_ttl(settings: Any) -> None:
    terms_of(make_lease(resource="stock"), [1_234_567.0] * 100)
    suggested = "a ttl of 1234568 s is suggested"
    settings.LEASING = {**settings.LEASING, "MARGIN": 0.1}

    printed = ran("stock")
    assert suggested in printed
    assert "It exceeds MAX_TTL (86400 s): raise that, or renew the lease." in printed
    settings.LEASING = {**settings.LEASING, "MAX_TTL": 2_000_000}
    assert suggested in (printed := ran("stock"))
    assert "MAX_TTL" not in printed


@pytest.mark.django_db
def test_the_command_refuses_what_has_too_few_samples_or_does_not_exist() -> None:
    make_lease(resource="stock")

    with pytest.raises(CommandError, match="Not enough data on stock .* 0 terms that"):
        ran("stock")
    with pytest.raises(CommandError, match="There is no lease shop"):
        ran("shop")
    with pytest.raises(CommandError, match="one of the arguments NAME --queue is required"):
        ran()


def ran(*arguments: str) -> str:
    out = StringIO()
    call_command("leases", "ttl", *arguments, stdout=out)
    return out.getvalue()
