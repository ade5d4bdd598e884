"""Verbs on SQLite as Django sets it up: a transaction that reads first cannot write later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from leasing.models import AuditEntry, Lease, LeaseEvent, OnceKey
from leasing.pruning import prune
from tests.factories import make_lease
from tests.leasing.support import grants

pytestmark = pytest.mark.django_db(transaction=True)


def still_mine(lease: Lease) -> None:
    with Lease.objects.hold("crane:2") as hold, hold.still_mine():
        OnceKey.objects.create(key="k")


VERBS: dict[str, Callable[[Lease], object]] = {
    "acquire": lambda lease: Lease.objects.acquire("crane:3"),
    "acquire_many": lambda lease: Lease.objects.acquire_many(["crane:3", "crane:4"]),
    "renew": lambda lease: Lease.objects.renew(lease),
    "renew_many": lambda lease: Lease.objects.renew_many(grants(lease)),
    "release": lambda lease: Lease.objects.release(lease),
    "revoke": lambda lease: Lease.objects.revoke(),
    "still mine": still_mine,
    "prune": lambda lease: prune(timedelta(0)),
    "prune events": lambda lease: LeaseEvent.objects.prune(lease.now + timedelta(days=1)),
    "prune audit": lambda lease: AuditEntry.objects.prune(timedelta(0)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_others_write_before_a_transaction_or_after_it(verb: str, others_write: list[str]) -> None:
    lease = Lease.objects.acquire("crane:1")
    make_lease(state="released")
    AuditEntry.objects.create(by="ann", verb="revoke", model="leasing.lease")
    others_write.clear()

    VERBS[verb](lease)

    assert "database is locked" in others_write
