"""Why a lease is as it is, in the same five answers as for tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from leasing import once
from leasing.diagnosis.lease import Explanation, explain, holding
from leasing.functions import after, database_now
from leasing.humanize import stamp
from leasing.models import EventKind, Lease, LeaseEvent, OnceKey
from tests.factories import make_lease, make_task
from tests.leasing.support import expire

pytestmark = pytest.mark.django_db


def explained(lease: Lease) -> Explanation:
    events = LeaseEvent.objects.filter(resource=lease.resource)
    lease.refresh_from_db()
    return explain(lease, database_now("default"), events=events)


@pytest.mark.usefixtures("database_clock")
def test_a_term_is_told_beside_earlier_ones_and_with_who_waits() -> None:
    for seconds in (1, 2, 9):
        earlier = make_lease(resource="report:stock", state="released")
        events = LeaseEvent.objects.filter(grant_id=earlier.grant_id, kind="released")
        LeaseEvent._base_manager.filter(pk__in=events).update(at=after(timedelta(seconds=seconds)))
    lease = make_lease(resource="report:stock", holder="a-job")
    minutes = timedelta(minutes=2)
    Lease.objects.update(acquired_at=F("acquired_at") - minutes, wanted_by="ann")

    assert explained(lease).headline == "Held by a-job for 2 min (usually 2.0 s)."
    Lease.objects.update(wanted_until=after(timedelta(seconds=9)))
    told = explained(lease).headline
    assert told == "Held by a-job for 2 min (usually 2.0 s); ann waits for it."


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"process": "report.py@vm:12:0a1b2c3d"}, "a-job (report.py, pid 12 on vm)"),
        ({"process": "shop-worker-1:0a1b2c3d"}, "a-job (shop-worker-1:0a1b2c3d)"),
        ({"process": 7}, "a-job"),
        ({}, "a-job"),
    ],
)
def test_a_holder_is_named_with_its_program(metadata: dict[str, Any], words: str) -> None:
    lease = make_lease(holder="a-job", metadata=metadata)
    found = explained(lease)
    assert (holding(lease), found.who, found.facts[0]) == (words, f"{words}.", ("Held by", words))
    assert found.headline.startswith(f"Held by {words} for ")
    expire(lease)
    assert explained(lease).who == f"Nobody. Last holder: {words}."
    assert holding(make_task(state="running", holder="a-job")) == "a-job"


def test_a_holder_that_is_late_is_named_with_its_program() -> None:
    lease = late()
    Lease.objects.update(metadata={"process": "report.py@vm:12:0a1b2c3d"})
    assert explained(lease).headline == "ann (report.py, pid 12 on vm) missed a renewal."
    lease = clock_skew()
    Lease.objects.update(metadata={"process": "report.py@vm:12:0a1b2c3d"})
    assert explained(lease).headline.startswith("Held by ann (report.py, pid 12 on vm). The ")


def late() -> Lease:
    lease = make_lease(holder="ann", renewals=1)
    Lease.objects.filter(pk=lease.pk).update(expires_at=after(timedelta(seconds=10)))
    return lease


def flapping() -> Lease:
    for holder in ("ann", "bob", "cid", "dan"):
        lease = Lease.objects.acquire("leader", holder=holder)
        if holder != "dan":
            expire(lease)
    return lease


def clock_skew() -> Lease:
    lease = make_lease(holder="ann")
    ahead = timedelta(minutes=5)
    Lease.objects.filter(pk=lease.pk).update(
        acquired_at=F("acquired_at") + ahead, expires_at=F("expires_at") + ahead
    )
    return lease


SITUATIONS: dict[str, Callable[[], Lease]] = {
    "free": lambda: make_lease(state="free"),
    "released": lambda: make_lease(state="released"),
    "running_ok": make_lease,
    "expired_unclaimed": lambda: make_lease(state="expired"),
    "late": late,
    "flapping": flapping,
    "clock_skew": clock_skew,
}


@pytest.mark.parametrize("code", SITUATIONS)
def test_each_situation_is_recognised_and_answered_in_full(code: str) -> None:
    answer = explained(SITUATIONS[code]())

    assert answer.code == code
    assert len(answer.answers) == 5 and all(text for _, text in answer.answers)
    assert "badge" not in json.loads(json.dumps(answer.as_json()))


@pytest.mark.parametrize("code", SITUATIONS)
def test_revoking_is_offered_where_somebody_has_it(code: str) -> None:
    answer = explained(SITUATIONS[code]())

    assert bool(answer.actions) == bool(answer.revoking) == (code not in ("free", "released"))


def test_those_who_let_it_expire_are_named() -> None:
    assert "cid, bob, ann" in dict(explained(flapping()).facts).values()


def test_takeovers_of_long_ago_are_no_flapping() -> None:
    lease = flapping()
    long_ago = LeaseEvent._base_manager.filter(kind=EventKind.TAKEN_OVER)
    long_ago.update(at=after(-timedelta(minutes=10)))

    assert explained(lease).code == "running_ok"


def test_a_kept_result_says_until_when_and_what_the_next_call_does() -> None:
    once("charge:17", window=60).run(dict)
    row = OnceKey.objects.get()
    done = row.window_ends_at - timedelta(seconds=60)
    kept, over = (explain(row, done + timedelta(seconds=some)) for some in (1, 61))

    assert (kept.code, over.code, kept.actions) == ("finished", "finished", [])
    until = stamp(row.window_ends_at)
    assert until in kept.headline and until not in over.headline
    assert kept.next.startswith("Until then") and over.next.startswith("The window has ended")


def test_who_took_it_is_told_by_the_events() -> None:
    lease = make_lease(holder="ann", state="revoked")

    answer = explained(lease)
    assert answer.code == "released"
    assert all(word in answer.headline for word in ("ann", "factory", "by the factory"))
