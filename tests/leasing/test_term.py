"""What each event makes of a term in each state, through what its holder, keeper and store call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from leasing.exceptions import LeaseLost
from leasing.holding.keeper import Keeper
from leasing.holding.term import State, Term, confirm_all, keep_all
from leasing.store import Renewal
from tests.leasing.support import ByHand, enter, far_away, granted

DETACHED, HELD, ENDING, LOST, UNRELEASED, RELEASED = State

Do = Callable[[ByHand, Term], object]


def unreleased(hand: ByHand, term: Term) -> None:
    hand.store.release_error = ConnectionError("the database is away")
    with pytest.raises(ConnectionError):
        term.release()
    hand.store.release_error = None


def refused(hand: ByHand, term: Term) -> None:
    hand.store.release_error = LeaseLost("crane:1", "it was revoked")
    with suppress(LeaseLost):
        term.release()
    hand.store.release_error = None


def released(hand: ByHand, term: Term) -> None:
    with suppress(LeaseLost):
        term.release()


def answered(hand: ByHand, term: Term) -> None:
    term.renewed(hand.now, Renewal(far_away(), 30))


#: How a term that is held comes into each state.
INTO: dict[State, Do] = {
    DETACHED: lambda hand, term: term.detach(),
    HELD: lambda hand, term: None,
    ENDING: lambda hand, term: term.expect_end(),
    LOST: lambda hand, term: term.mark_lost("thief has held it"),
    UNRELEASED: unreleased,
    RELEASED: released,
}
#: What happens to it, and the states in which it is then; where none is told it is as it was.
EVENTS: dict[str, tuple[Do, dict[State, State]]] = {
    "it is kept": (lambda hand, term: keep_all([term], hand.keeper), {DETACHED: HELD}),
    "it was not ended after all": (
        lambda hand, term: term.resume(hand.now + 20),
        {DETACHED: HELD},
    ),
    "its end is expected": (lambda hand, term: term.expect_end(), {HELD: ENDING}),
    "a renewal is answered": (answered, {}),
    "it is lost": (lambda hand, term: term.mark_lost("revoked"), {HELD: LOST, ENDING: LOST}),
    "it is detached": (
        lambda hand, term: term.detach(),
        {HELD: DETACHED, ENDING: DETACHED, LOST: RELEASED},
    ),
    "it is released": (
        released,
        {HELD: RELEASED, ENDING: RELEASED, LOST: RELEASED, UNRELEASED: RELEASED},
    ),
    "its release is refused": (
        refused,
        {HELD: RELEASED, ENDING: RELEASED, LOST: RELEASED, UNRELEASED: RELEASED},
    ),
    "the answer to an earlier release comes": (
        lambda hand, term: confirm_all([term]),
        {UNRELEASED: RELEASED},
    ),
    "an earlier release is refused": (
        lambda hand, term: term.refuse("it was revoked"),
        {UNRELEASED: RELEASED},
    ),
    "its release fails": (
        lambda hand, term: unreleased(hand, term) if term.valid else None,
        {HELD: UNRELEASED, ENDING: UNRELEASED},
    ),
    "the process forks": (
        lambda hand, term: hand.keeper.after_fork(),
        {HELD: LOST, ENDING: LOST},
    ),
}


@pytest.fixture
def term(hand: ByHand) -> Term:
    """A term that is held."""
    return hand.enter()[0]


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_makes_of_each_state_what_the_table_says(
    event: str, state: State, hand: ByHand, term: Term
) -> None:
    INTO[state](hand, term)
    assert term.state is state
    happen, after = EVENTS[event]
    trusted_until = term.trusted_until
    happen(hand, term)

    assert term.state is after.get(state, state)
    assert term.trusted_until == trusted_until or state in after
    is_renewed = term.state in (HELD, ENDING)
    assert (term in hand.keeper.holds) is is_renewed
    assert term.valid is is_renewed
    assert term.trusted_until > 0 or not is_renewed


@pytest.mark.parametrize(
    "event",
    ["it is lost", "its release is refused", "an earlier release is refused", "the process forks"],
)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_a_loss_is_told_once_and_to_nobody_who_ends_it_or_never_had_it(
    event: str, state: State, hand: ByHand, term: Term
) -> None:
    INTO[state](hand, term)
    for _ in range(2):
        EVENTS[event][0](hand, term)

    is_news = {
        "it is lost": {HELD},
        "its release is refused": {HELD, ENDING, UNRELEASED},
        "an earlier release is refused": {UNRELEASED},
    }
    times = state is LOST or state in is_news.get(event, ())
    assert hand.reported == [term] * times
    assert len(hand.store.losses) == times
    assert term.is_lost is bool(term.lost)


@pytest.mark.parametrize("way", ["kept", "resumed"])
@pytest.mark.parametrize("end", [LOST, UNRELEASED, RELEASED], ids=lambda state: state.name)
def test_a_term_is_never_used_twice(end: State, way: str, hand: ByHand, term: Term) -> None:
    INTO[end](hand, term)
    released(hand, term)
    keep_all([term], hand.keeper) if way == "kept" else term.resume(hand.now + 20)
    hand.after(1)

    assert not term.valid
    assert hand.keeper.holds == []
    with pytest.raises(LeaseLost):
        term.ensure()


def test_what_its_store_has_just_granted_is_held_by_nobody() -> None:
    term = granted()

    assert term.state is DETACHED
    assert not term.valid and not term.lost
    term.release()
    assert term.state is DETACHED


def test_an_end_that_is_expected_is_renewed_until_it_is_written(hand: ByHand, term: Term) -> None:
    term.expect_end()
    hand.after(12)

    assert term.state is ENDING
    assert len(hand.store.calls) == 1


def test_a_term_that_forks_while_it_is_released_is_the_parents(hand: ByHand) -> None:
    keeper = Keeper(clock=hand.clock, threads=False)
    (term,) = enter(hand.store, keeper, 1)
    unreleased(hand, term)
    keeper.after_fork()

    assert term.state is UNRELEASED
    assert not term.valid


def test_a_store_that_gives_no_reason_has_lost_it_all_the_same(term: Term) -> None:
    term.mark_lost("")

    assert term.lost and term.is_lost
    with pytest.raises(LeaseLost, match="gave no reason"):
        term.ensure()
