"""Signals about leases, and their log lines."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from leasing import signals
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.holding.keeper import Keeper
from leasing.models import Lease
from leasing.models.lease import LeaseQuerySet
from leasing.runtime.events import happened
from tests.factories import make_lease
from tests.leasing.conftest import Sent
from tests.leasing.support import FakeClock, expire, row_hold, usurp
from tests.logs import logged

pytestmark = pytest.mark.django_db


def acquire() -> None:
    make_lease(resource="crane:1", holder="ann")


def take_over() -> None:
    make_lease(resource="crane:1", holder="ann", state="expired")
    Lease.objects.acquire("crane:1", holder="bob")


def renew() -> None:
    make_lease(resource="crane:1", holder="ann", renewals=1)


def release_twice() -> None:
    lease = make_lease(resource="crane:1", holder="ann", state="released")
    Lease.objects.release(lease)


def revoke() -> None:
    make_lease(resource="crane:1", holder="ann")
    Lease.objects.revoke("on fire", "root")


def renew_too_late() -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    usurp(lease, "bob")
    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)


def release_too_late() -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    Lease.objects.revoke("on fire", "root")
    with pytest.raises(LeaseLost):
        Lease.objects.release(lease)


@pytest.mark.parametrize(
    ("story", "names"),
    [
        (acquire, ["acquired"]),
        (take_over, ["acquired", "taken_over"]),
        (renew, ["acquired", "renewed"]),
        (release_twice, ["acquired", "released"]),
        (revoke, ["acquired", "revoked"]),
        (renew_too_late, ["acquired", "refused"]),
        (release_too_late, ["acquired", "revoked", "refused"]),
    ],
)
def test_each_event_is_signalled_once(
    story: Callable[[], None], names: list[str], sent: Sent
) -> None:
    story()

    assert [name for name, *_ in sent] == names
    assert {lease.resource for _, lease, _ in sent} == {"crane:1"}


def test_the_sender_is_the_model() -> None:
    senders: list[Any] = []

    def receiver(sender: Any, **details: Any) -> None:
        senders.append(sender)

    signals.acquired.connect(receiver)
    try:
        make_lease()
    finally:
        signals.acquired.disconnect(receiver)

    assert senders == [Lease]


def test_the_signal_shows_the_row_as_it_stands_after_the_change(sent: Sent) -> None:
    take_over()
    Lease.objects.revoke()

    holders = [lease.holder for _, lease, _ in sent]
    assert holders == ["ann", "bob", "bob"]
    assert sent[-1][1].released_at is not None


def test_signals_say_who_and_why(sent: Sent) -> None:
    release_too_late()

    assert sent[1][2] == {"reason": "on fire", "by": "root"}
    assert sent[2][2] == {"verb": "release", "reason": "it was revoked"}


def test_nothing_is_signalled_when_nothing_happened(sent: Sent) -> None:
    make_lease(resource="crane:1")
    sent.clear()

    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1")
    Lease.objects.none().revoke()

    assert sent == []


def test_the_change_is_committed_when_the_signal_is_sent() -> None:
    seen: list[int] = []

    def receiver(lease: Lease, **details: Any) -> None:
        # A fresh grant can only be renewed outside the transaction that won it.
        seen.append(Lease.objects.renew(copy.copy(lease)).renewals)

    signals.acquired.connect(receiver)
    try:
        make_lease()
    finally:
        signals.acquired.disconnect(receiver)

    assert seen == [1]


def test_a_receiver_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def receiver(**details: Any) -> None:
        raise ZeroDivisionError

    signals.acquired.connect(receiver)
    try:
        lease = make_lease()
    finally:
        signals.acquired.disconnect(receiver)

    assert lease.grants == 1
    assert "ZeroDivisionError" in caplog.text


# The log


@pytest.mark.parametrize(
    ("story", "level", "line"),
    [
        (acquire, logging.INFO, "ann acquired crane:1, token {token}"),
        (take_over, logging.WARNING, "bob took over expired crane:1, token {token}"),
        (renew, logging.DEBUG, "ann renewed crane:1"),
        (release_twice, logging.INFO, "ann released crane:1"),
        (revoke, logging.WARNING, "root revoked crane:1 from ann: on fire"),
        (
            release_too_late,
            logging.WARNING,
            "Refused release of crane:1 by ann with token {refused}: it was revoked",
        ),
    ],
)
def test_each_event_is_one_line_of_the_log(
    story: Callable[[], None],
    level: int,
    line: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "leasing"):
        story()

    last = caplog.records[-1]
    token = Lease.objects.get().fencing_token
    assert (last.name, last.levelno) == ("leasing", level)
    refused = re.search(r"with token (\d+)", last.getMessage())  # of a grant that is gone
    assert last.getMessage() == line.format(token=token, refused=refused and refused[1])


def test_a_loss_is_logged_with_its_reason(
    manual_keeper: Keeper, clock: FakeClock, caplog: pytest.LogCaptureFixture, notes: Keeper
) -> None:
    hold = row_hold(manual_keeper)
    with pytest.raises(LeaseLost), hold:
        clock.advance(30)
        manual_keeper.declare_lost()

    assert f"{hold.term.holder} lost crane:1: it was not renewed in time" in caplog.messages


def test_a_revocation_without_name_and_reason_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_lease(resource="crane:1", holder="ann")
    Lease.objects.revoke()

    assert "an operator revoked crane:1 from ann: no reason given" in caplog.messages


def test_an_expired_renewal_is_logged_as_refused(caplog: pytest.LogCaptureFixture) -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    expire(lease)
    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)

    said = caplog.messages[-1]
    assert re.match(r"Refused renew of crane:1 by ann with token \d+: it expired at", said)


def test_where_nobody_listens_and_the_log_is_off_nobody_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "leasing"):
        make_lease(resource="crane:1", holder="ann")
        Lease.objects.revoke("on fire", "root")

    assert logged(caplog) == ["lease.revoked"]


def test_who_listens_is_told_with_the_log_off(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def listen(lease: Lease, **details: Any) -> None:
        heard.append(lease.resource)

    signals.acquired.connect(listen)
    try:
        with caplog.at_level(logging.ERROR, "leasing"):
            make_lease(resource="crane:1", holder="ann")
    finally:
        signals.acquired.disconnect(listen)

    assert heard == ["crane:1"]
    assert caplog.messages == []


def test_what_cannot_be_logged_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []

    def listen(lease: object, **details: Any) -> None:
        heard.append(lease)

    signals.acquired.connect(listen)
    unfit = object()
    try:
        with caplog.at_level(logging.INFO, "leasing"):
            happened("lease.acquired", [unfit])
    finally:
        signals.acquired.disconnect(listen)

    assert (logged(caplog), heard) == (["log.failed"], [unfit])


class Untold(LeaseQuerySet):
    """Leases of which nobody is told."""

    is_told = False


@pytest.mark.parametrize("form", ["by hand", "portable"])
def test_leases_of_which_nobody_is_told_send_no_signal(
    form: str, sent: Sent, request: pytest.FixtureRequest
) -> None:
    if form == "portable":
        request.getfixturevalue("portable")
    rows = Untold(Lease)

    rows.release(rows.acquire("crane:1"))

    assert sent == [] and Lease.objects.get().released_at is not None
