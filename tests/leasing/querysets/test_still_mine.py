"""The block for one's own writes: they commit with the proof of the lease, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import Error, connection, transaction
from django.test import override_settings

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import after
from leasing.holding.keeper import Keeper, keeper
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.testing.keeper import ManualKeeper
from tests.leasing.conftest import Sent
from tests.leasing.locks import someone_waits
from tests.leasing.support import (
    OtherSession,
    events,
    expire,
    revoke_ahead_of_the_clock,
    stored,
    usurp,
)
from tests.limits import Limits
from tests.press.models import Author
from tests.processes import wait_for
from tests.shop.models import Order

# The refusals of rolled-back blocks wait for a keeper; a real one would write them any time later.
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("notes")]


@pytest.fixture
def hold(clocks: ManualKeeper) -> Iterator[Term]:
    """A hold on crane:1, entered; how it ends is the test's."""
    term = Lease.objects.hold("crane:1", holder="ann", ttl=30).__enter__()
    yield term
    term.detach()


@pytest.fixture
def lease(hold: Term) -> Lease:
    return Lease.objects.get(resource="crane:1")


def write(name: str = "ann") -> None:
    Author.objects.create(name=name)


def written() -> list[str]:
    return list(Author.objects.order_by("pk").values_list("name", flat=True))


def test_what_is_written_in_the_block_is_committed(hold: Term, lease: Lease) -> None:
    before = stored(lease)
    with hold.still_mine():
        write()

    assert written() == ["ann"]
    assert stored(lease) == before  # it proves, and writes nothing of its own
    hold.ensure()


def test_a_block_may_follow_another(hold: Term) -> None:
    for name in ("ann", "bob"):
        with hold.still_mine():
            write(name)

    assert written() == ["ann", "bob"]


def test_rows_of_any_model_can_be_proved(clocks: ManualKeeper) -> None:
    order = Order.objects.create(article="ink")
    with order.hold() as hold:
        with hold.still_mine():
            write()
        Order.objects.revoke()
        with pytest.raises(LeaseLost, match="it was revoked"), hold.still_mine():
            write("late")
        hold.detach()

    assert written() == ["ann"]


def test_what_fails_in_the_block_is_rolled_back_and_the_hold_lives(hold: Term) -> None:
    with pytest.raises(KeyError), hold.still_mine():
        write()
        raise KeyError

    assert written() == []
    hold.ensure()


ENDS: dict[str, tuple[Callable[[Lease], object], str]] = {
    "revoked": (lambda lease: Lease.objects.filter(pk=lease.pk).revoke(), "it was revoked"),
    "expired": (expire, "it expired at"),
    "taken over": (usurp, "thief has held it since"),
    "deleted": (lambda lease: Lease.objects.all().delete(), "its row is gone"),
    "revoked ahead of the clock": (revoke_ahead_of_the_clock, "it was revoked"),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_lease_that_is_over_opens_no_block(
    end: str, hold: Term, lease: Lease, sent: Sent
) -> None:
    finish, reason = ENDS[end]
    finish(lease)
    sent.clear()

    with pytest.raises(LeaseLost, match=f"crane:1 was lost: {reason}"), hold.still_mine():
        pytest.fail("the body must not run")

    assert [(name, details["verb"]) for name, _, details in sent] == [("refused", "commit")]


@pytest.mark.parametrize("end", list(ENDS))
def test_a_lease_that_ends_within_the_block_takes_its_writes_along(
    end: str, hold: Term, lease: Lease
) -> None:
    finish, reason = ENDS[end]

    with pytest.raises(LeaseLost, match=reason), hold.still_mine():
        write()
        finish(lease)

    assert written() == []


def test_a_block_that_lasts_longer_than_the_lease_writes_nothing(
    hold: Term, clocks: ManualKeeper
) -> None:
    """On the database's clock, whatever the holder's says."""
    with pytest.raises(LeaseLost, match="it expired at"), hold.still_mine():
        write()
        clocks.frozen = True
        clocks.advance(30)

    assert written() == []


def test_a_hold_that_is_not_trusted_any_more_opens_no_block(
    hold: Term, clocks: ManualKeeper, django_assert_num_queries: Any
) -> None:
    clocks.frozen = True
    clocks.advance(29.9)

    with django_assert_num_queries(0), pytest.raises(LeaseLost, match="not renewed in time"):
        hold.still_mine()


def test_a_hold_that_was_never_entered_proves_nothing() -> None:
    with pytest.raises(RuntimeError, match="enter the hold first"):
        Lease.objects.hold("crane:1").term.still_mine()


def test_a_refused_block_is_noted_though_it_is_rolled_back(notes: Keeper) -> None:
    with kept_by(notes) as hold:
        Lease.objects.revoke()
        with pytest.raises(LeaseLost), hold.still_mine():
            pytest.fail("the body must not run")
        assert "refused" not in events("crane:1")
        notes.write_notes()

    assert events("crane:1") == ["acquired", "revoked", "refused"]


@contextmanager
def kept_by(own: Keeper, **terms: Any) -> Iterator[Term]:
    """The term of a hold on crane:1 that nobody renews."""
    hold = Lease.objects.hold("crane:1", holder="ann", **terms)
    hold._keeper = own
    own.clock = keeper.clock
    term = hold.__enter__()
    yield term
    term.detach()


# With others about


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_nobody_takes_the_lease_inside_the_block_though_it_expires(
    other_session: OtherSession, manual_keeper: Keeper
) -> None:
    """The proof at the end could come too late for a commit that takes its time."""
    with kept_by(manual_keeper, ttl=30) as hold:
        lease = Lease.objects.get()
        with pytest.raises(LeaseLost, match="it expired at"), hold.still_mine():
            write()
            Lease.objects.filter(pk=lease.pk).update(expires_at=after(timedelta(seconds=-1)))
            with pytest.raises(LeaseHeld):
                other_session.run(lambda: Lease.objects.acquire("crane:1", holder="bob"))

    assert written() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_real_deadline_passes_inside_the_block_and_nobody_gets_in(
    other_session: OtherSession, manual_keeper: Keeper
) -> None:
    with kept_by(manual_keeper, ttl=30) as hold:
        lease = Lease.objects.get()
        Lease.objects.filter(pk=lease.pk).update(expires_at=after(timedelta(seconds=1)))
        with pytest.raises(LeaseLost, match="it expired at"), hold.still_mine():
            write()
            wait_for(other_session_sees_expiry(other_session, lease))
            with pytest.raises(LeaseHeld, match="being acquired by someone else"):
                other_session.run(lambda: Lease.objects.acquire("crane:1", holder="bob"))

    assert written() == []
    assert other_session.run(lambda: Lease.objects.acquire("crane:1", holder="bob")).grants == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_holder_that_falls_silent_inside_the_block_keeps_nobody_waiting(
    other_session: OtherSession, manual_keeper: Keeper, limits: Limits
) -> None:
    limits(silence=0.01)
    with kept_by(manual_keeper, ttl=30) as hold:
        # The block is to be open by then.
        Lease.objects.update(expires_at=after(timedelta(seconds=2)))

        def is_taken_over() -> bool:
            try:
                return bool(Lease.objects.acquire("crane:1", holder="bob"))
            except LeaseHeld:
                return False

        with pytest.raises(Error, match="idle-in-transaction"), hold.still_mine():
            write()
            wait_for(lambda: other_session.run(is_taken_over))
            write()

    assert written() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_within_a_transaction_silence_is_the_callers_affair(manual_keeper: Keeper) -> None:
    with kept_by(manual_keeper) as hold, transaction.atomic(), hold.still_mine():
        cursor = connection.cursor()
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        assert cursor.fetchone() == ("0",)


def other_session_sees_expiry(session: OtherSession, lease: Lease) -> Callable[[], bool]:
    expired = Lease.objects.filter(pk=lease.pk).expired()
    return lambda: session.run(expired.exists)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("verb", ["revoke", "release"])
def test_an_end_from_elsewhere_waits_for_the_commit(
    verb: str, other_session: OtherSession, manual_keeper: Keeper
) -> None:
    with kept_by(manual_keeper) as hold:
        lease = Lease.objects.get()
        with hold.still_mine():
            write()
            end: Callable[[], object] = partial(Lease.objects.release, lease)
            if verb == "revoke":
                end = Lease.objects.filter(pk=lease.pk).revoke
            ending = other_session.start(end)
            wait_for(someone_waits)
        ending.result(20)

    assert written() == ["ann"]
    assert Lease.objects.released().exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_block_that_waited_past_the_deadline_is_not_opened(
    other_session: OtherSession, manual_keeper: Keeper
) -> None:
    """Judged before it waited, an expired lease would prove itself."""
    third = OtherSession()
    try:
        with kept_by(manual_keeper) as hold:
            lease = Lease.objects.get()
            Lease.objects.filter(pk=lease.pk).update(expires_at=after(timedelta(seconds=2)))
            other_session.lock(lease)
            proving = third.start(prove, hold)
            wait_for(someone_waits)
            wait_for(Lease.objects.expired().exists)
            other_session.commit()
            with pytest.raises(LeaseLost, match="it expired at"):
                proving.result(20)
    finally:
        third.close()

    assert written() == []


def prove(hold: Term) -> None:
    with hold.still_mine():
        write()


def test_within_a_transaction_the_block_is_part_of_it(manual_keeper: Keeper) -> None:
    with kept_by(manual_keeper) as hold:
        with transaction.atomic():
            with hold.still_mine():
                write()
            transaction.set_rollback(True)
        assert written() == []

        with transaction.atomic():
            write("before")
            with pytest.raises(LeaseLost), hold.still_mine():
                write()
                expire(Lease.objects.get())

    assert written() == ["before"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_within_a_transaction_the_lease_cannot_be_taken_until_that_commits(
    other_session: OtherSession, manual_keeper: Keeper
) -> None:
    with kept_by(manual_keeper) as hold, transaction.atomic():
        with hold.still_mine():
            write()
        expire(Lease.objects.get())
        with pytest.raises(LeaseHeld):
            other_session.run(lambda: Lease.objects.acquire("crane:1", holder="bob"))


@pytest.mark.django_db(transaction=True)
def test_renewals_pass_the_row_over_while_the_block_is_open() -> None:
    """With a real keeper: a row that is locked is neither renewed nor lost."""
    with (
        override_settings(LEASING={"RENEW_EVERY": 0.05, "JITTER": 0}),
        Lease.objects.hold("crane:1", ttl=30) as hold,
    ):
        with hold.still_mine():
            write()
        wait_for(lambda: Lease.objects.get().renewals >= 2)
        hold.ensure()
    keeper.stop()

    assert events("crane:1") == ["acquired", "released"]
    assert written() == ["ann"]
