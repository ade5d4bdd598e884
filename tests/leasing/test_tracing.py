"""Spans of taking a lease, holding it, and giving it back."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

import leasing.tracing
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.models import Lease
from leasing.runtime.aio import drive
from tests.tracing import Faulty, Spans, attributes, current_span, events, is_in

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_block_is_a_span_between_those_of_taking_and_giving_back(spans: Spans) -> None:
    with Lease.objects.hold("crane", ttl=30) as hold:
        inside = current_span()

    acquire, held, release = spans.all
    assert [acquire.name, held.name, release.name] == ["acquire", "hold", "release"]
    assert is_in(release, held) and acquire.parent is None and held.parent is None
    assert held.context and held.context.span_id == inside
    assert current_span() == 0
    assert attributes(held) == {
        "leasing.resource": "crane",
        "leasing.holder": hold.holder,
        "leasing.fencing_token": hold.fencing_token,
        "leasing.ttl": 30.0,
    }
    assert attributes(acquire)["leasing.outcome"] == "acquired"


def test_an_async_block_is_one_too(spans: Spans) -> None:
    async def hold() -> int:
        async with Lease.objects.hold("crane"):
            return current_span()

    inside = asyncio.run(hold())

    held = spans.one("hold")
    assert held.context and held.context.span_id == inside
    assert is_in(spans.one("release"), held)


def test_what_is_taken_and_given_back_by_hand_has_spans(spans: Spans) -> None:
    lease = Lease.objects.acquire("crane")
    Lease.objects.release(lease)

    assert spans.names == ["acquire", "release"]


def test_a_lease_that_somebody_has_is_no_error(spans: Spans) -> None:
    Lease.objects.acquire("crane", holder="alice")
    with pytest.raises(LeaseHeld), Lease.objects.hold("crane"):
        pass

    _, acquire = spans.all
    assert attributes(acquire)["leasing.outcome"] == "held"
    assert attributes(acquire)["leasing.held_by"] == "alice"
    assert acquire.status.is_unset


def test_renewals_and_losses_are_events(spans: Spans) -> None:
    with pytest.raises(LeaseLost), Lease.objects.hold("crane") as hold:
        hold.renew()
        Lease.objects.filter(resource="crane").revoke(by="alice")
        hold.renew()

    held = spans.one("hold")
    assert events(held) == ["renewed", "lost"]
    assert attributes(held)["error.type"] == "LeaseLost"
    assert not held.status.is_ok and "lost: " in (held.status.description or "")
    assert current_span() == 0


def test_a_release_that_comes_too_late_is_an_error(spans: Spans) -> None:
    lease = Lease.objects.acquire("crane")
    Lease.objects.filter(resource="crane").revoke(by="alice")
    with pytest.raises(LeaseLost):
        Lease.objects.release(lease)

    assert attributes(spans.one("release"))["error.type"] == "LeaseLost"


def test_each_of_several_has_a_span_and_none_is_the_current_one(spans: Spans) -> None:
    with Lease.objects.acquire_many(["bow", "stern"]):
        assert current_span() == 0

    assert {attributes(span)["leasing.resource"] for span in spans.named("hold")} == {
        "bow",
        "stern",
    }


def test_a_hold_is_followed_anew_each_time_it_is_entered(spans: Spans) -> None:
    hold = Lease.objects.hold("crane")
    for _ in range(2):
        with hold:
            pass

    assert len(spans.named("hold")) == 2


def test_a_campaign_has_no_spans(spans: Spans) -> None:
    hold = Lease.objects.hold("crane", stopping=threading.Event())
    drive(hold.entering())
    hold.term.release()

    assert spans.names == ["release"]


def test_tracing_asks_the_database_nothing(spans: Spans) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as asked, Lease.objects.hold("crane"):
            pass
        return len(asked)

    queries()  # makes its row
    followed = queries()
    leasing.tracing.uninstrument()

    assert followed == queries()


class Broken:
    """A tracer that has a fault."""

    def start_span(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("the exporter's day off")


def test_errors_of_tracing_harm_no_lease(spans: Spans) -> None:
    provider: Any = Faulty(Broken())
    leasing.tracing.instrument(provider)

    with Lease.objects.hold("crane") as hold:
        hold.renew()
        assert hold.valid

    assert Lease.objects.get().released_at is not None
