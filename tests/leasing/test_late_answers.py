"""A renewal is under way while its term ends, and its answer comes late: after the same hold was
entered again, or when nothing is held any more. It is about the term that it was sent for."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from leasing.exceptions import LeaseLost
from leasing.holding.term import margin
from leasing.store import Renewals
from tests.leasing.support import PATIENCE, ByHand, FakeStore

Grants = Mapping[Any, uuid.UUID]


class Gate:
    """An answer of the store that waits at a gate. ``sent`` is set once the request is there."""

    def __init__(self, answer: Callable[[Grants], Renewals]) -> None:
        self.sent = threading.Event()
        self.opened = threading.Event()
        self._answer = answer

    def __call__(self, grants: Grants) -> Renewals:
        self.sent.set()
        assert self.opened.wait(PATIENCE)
        return self._answer(grants)


@pytest.fixture(params=["lose_all", "renew_all", "all_busy", "fail"])
def gate(request: pytest.FixtureRequest, hand: ByHand) -> Gate:
    """What the next renewal meets: its answer is "lost", "30 s more", "locked", or an error."""
    gate = Gate(getattr(FakeStore, request.param))
    hand.store.answer = gate
    return gate


@pytest.fixture
def late(hand: ByHand, gate: Gate) -> Iterator[Callable[[], None]]:
    """Sends the renewal of what is held on another thread; called a second time, lets the answer
    come and waits until it was taken in."""
    renewing = threading.Thread(target=hand.keeper.renew_due)

    def step() -> None:
        if not gate.sent.is_set():
            hand.clock.advance(12)
            renewing.start()
            assert gate.sent.wait(PATIENCE)
        else:
            gate.opened.set()
            renewing.join(PATIENCE)
            assert not renewing.is_alive()

    yield step
    gate.opened.set()
    renewing.join(PATIENCE)


def test_a_late_answer_changes_nothing_of_the_next_term(
    hand: ByHand, late: Callable[[], None]
) -> None:
    hold = hand.hold()
    with hold as first:
        token, grant_id = first.fencing_token, first.grant_id
        late()
    with hold as second:
        trusted_until, due_at = second.trusted_until, second.due_at
        late()

        assert second is not first
        assert second.grant_id != grant_id
        assert (second.trusted_until, second.due_at) == (trusted_until, due_at)
        assert second.trusted_until == hand.now + 30 - margin(30)
        assert second.valid and not second.lost
        second.ensure()
        assert (hand.reported, hand.store.losses) == ([], [])

        # A thread of the first block goes on with what it had.
        assert not first.valid and not first.lost
        with pytest.raises(LeaseLost, match="it was released"):
            first.ensure()
        with pytest.raises(LeaseLost, match="it was released"):
            first.renew()
        assert (first.fencing_token, first.grant_id) == (token, grant_id)
    assert [term.grant_id for term in hand.store.released] == [grant_id, second.grant_id]
    assert not hand.keeper.holds


def test_the_next_term_is_renewed_and_lost_by_answers_of_its_own(
    hand: ByHand, late: Callable[[], None]
) -> None:
    hold = hand.hold()
    with hold:
        late()
    with pytest.raises(LeaseLost, match="thief has held it"), hold as second:
        late()
        hand.store.answer = hand.store.renew_all
        hand.after(12)
        assert second.trusted_until == hand.now + 30 - margin(30)
        hand.store.answer = hand.store.lose_all
        hand.after(12)
        assert hand.reported == [second]


@pytest.mark.parametrize("end", ["released", "detached", "unreleased", "lost", "forked"])
def test_a_late_answer_wakes_no_term_that_is_over(
    end: str, hand: ByHand, late: Callable[[], None]
) -> None:
    (term,) = hand.enter()
    late()
    if end == "released":
        term.release()
    elif end == "detached":
        term.detach()
    elif end == "unreleased":
        hand.store.release_error = ConnectionError("the database is away")
        with pytest.raises(ConnectionError):
            term.release()
    elif end == "lost":
        term.mark_lost("a test took it")
    else:
        hand.keeper.after_fork()
    shown, losses = repr(term), list(hand.store.losses)
    late()

    assert not term.valid and term.trusted_until == 0
    assert repr(term) == shown
    assert hand.store.losses == losses
    assert not hand.keeper.holds
