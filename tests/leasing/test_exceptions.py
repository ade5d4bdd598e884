"""Errors: what they say, and that they travel."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from leasing.client.exceptions import (
    AccessDenied,
    RequestRefused,
    ServiceError,
    ServiceUnavailable,
)
from leasing.exceptions import (
    InvalidResource,
    InvalidTTL,
    LeaseError,
    LeaseHeld,
    LeaseInTransaction,
    LeaseLost,
    LeaseTimeout,
    PayloadMismatch,
    StaleToken,
    StoreError,
)
from leasing.store import Reason, Why, why_of


class Unreachable(StoreError, ConnectionError):
    """As a project may declare an error, with a base that keeps its args in another way."""


UNTIL = datetime(2030, 1, 1, tzinfo=UTC)
ERRORS = [
    LeaseError(),
    LeaseHeld("crane:1"),
    LeaseHeld("crane:1", "ann", UNTIL, 2.5),
    LeaseTimeout("crane:1", "ann", UNTIL, 5.04, 2.5),
    LeaseLost("crane:1", "it was revoked"),
    LeaseLost("crane:1", Reason(Why.GONE, "its row is gone")),
    StaleToken("crane:1", "a newer one"),
    PayloadMismatch("charge:1"),
    LeaseInTransaction(),
    InvalidResource("The resource must be a string."),
    InvalidTTL(),
    AccessDenied(401, "no such token"),
    RequestRefused(409, "of another site"),
    ServiceUnavailable("no answer"),
    Unreachable("crane:1"),
]


def test_a_lease_refused_in_a_transaction_teaches_what_to_do() -> None:
    (sentence,) = str(LeaseInTransaction()).splitlines()

    for remedy in (
        "with hold: with transaction.atomic(): ...",
        "A view under ATOMIC_REQUESTS needs @transaction.non_atomic_requests",
        "hold(..., separate=True)",
    ):
        assert remedy in sentence


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_every_error_survives_pickling(error: LeaseError | ServiceError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error) != ""
    assert copy.args == error.args
    assert copy.__dict__ == error.__dict__
    assert why_of(getattr(copy, "reason", "")) == why_of(getattr(error, "reason", ""))


def test_the_messages() -> None:
    assert str(LeaseHeld("crane:1")) == "crane:1 is being acquired by someone else."
    assert str(LeaseTimeout("crane:1", "ann", UNTIL, 5.04)) == (
        "Waited 5.0 s: crane:1 is held by ann until 2030-01-01T00:00:00+00:00."
    )
    assert str(LeaseLost("crane:1", "it was revoked")) == "crane:1 was lost: it was revoked."
    assert str(LeaseError()) == "Something is wrong with a lease."
