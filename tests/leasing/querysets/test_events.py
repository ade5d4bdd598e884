"""The ledger: what happened to leases, in order and for good."""

from __future__ import annotations

import pytest
from django.db import transaction

from leasing.exceptions import LeaseLost
from leasing.models import EventKind, Lease, LeaseEvent
from tests.factories import make_lease
from tests.leasing.support import events, expire

pytestmark = pytest.mark.django_db


def test_the_ledger_tells_the_life_of_a_lease_in_order() -> None:
    first = make_lease(resource="crane:1", holder="ann", renewals=3)
    expire(first)
    second = Lease.objects.acquire("crane:1", holder="bob")
    with pytest.raises(LeaseLost):
        Lease.objects.renew(first)
    Lease.objects.release(second)
    Lease.objects.acquire("crane:1", holder="cleo")
    Lease.objects.filter(resource="crane:1").revoke("enough", "root")

    assert events("crane:1") == [
        "acquired",
        "taken_over",
        "refused",
        "released",
        "acquired",
        "revoked",
    ]
    reported = LeaseEvent.objects.order_by("id").values_list("holder", "previous_holder", "actor")
    assert list(reported) == [
        ("ann", "", ""),
        ("bob", "ann", ""),
        ("ann", "", ""),
        ("bob", "", ""),
        ("cleo", "bob", ""),
        ("cleo", "", "root"),
    ]


def test_an_event_is_never_changed() -> None:
    make_lease()
    event = LeaseEvent.objects.get()
    event.reason = "something else"

    with pytest.raises(TypeError, match="cannot be changed"), transaction.atomic():
        event.save()

    assert LeaseEvent.objects.get().reason == ""


def test_an_event_outlives_its_row() -> None:
    lease = make_lease(resource="crane:1")
    key = str(lease.pk)
    Lease.objects.all().delete()

    event = LeaseEvent.objects.get()
    assert (event.resource, event.key, event.model) == ("crane:1", key, "leasing.lease")


def test_an_event_shows_its_resource_and_kind() -> None:
    event = LeaseEvent(resource="crane:1", kind=EventKind.TAKEN_OVER)

    assert str(event) == "crane:1 taken over"


def test_the_newest_event_comes_first() -> None:
    make_lease(resource="crane:1", state="released")

    assert [event.kind for event in LeaseEvent.objects.all()] == ["released", "acquired"]


def test_each_event_carries_the_token_of_its_term() -> None:
    lease = make_lease(resource="crane:1", state="released")

    tokens = set(LeaseEvent.objects.values_list("fencing_token", "grant_id"))
    assert tokens == {(lease.fencing_token, lease.grant_id)}


def test_the_time_of_an_event_is_the_databases() -> None:
    lease = make_lease()
    event = LeaseEvent.objects.get()

    assert lease.acquired_at is not None
    assert abs((event.at - lease.acquired_at).total_seconds()) < 5
