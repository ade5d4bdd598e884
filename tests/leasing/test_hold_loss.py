"""A loss is reported once, to each who should know (C3)."""

from __future__ import annotations

import threading

import pytest

from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.hold.held_grant import HeldGrant
from leasing.keeper import Keeper
from tests.leasing.support import FakeClock, FakeStore, granted, hold_of


def test_on_lost_is_called_once_with_the_hold(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    reported: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=reported.append)
    with pytest.raises(LeaseLost, match="first"), hold:
        hold._held.mark_lost("first")
        hold._held.mark_lost("second")
        clock.advance(60)
        manual_keeper.declare_lost()

    assert reported == [hold]
    assert store.losses == ["first"]


def test_the_store_hears_of_a_loss_that_is_told_promptly(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    reported: list[HeldGrant] = []
    grant = granted(1, 30, manual_keeper.clock())
    held = HeldGrant(store, grant, on_lost=reported.append, are_prompt=True, keeper=manual_keeper)
    held.keep()
    held.mark_lost("thief has held it")

    assert (reported, store.losses) == ([held], ["thief has held it"])


def test_on_lost_is_called_once_when_many_find_out_together(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    reported: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=reported.append)
    hold.__enter__()
    start = threading.Barrier(8)

    def find_out() -> None:
        start.wait()
        hold._held.mark_lost("thief has held it")

    threads = [threading.Thread(target=find_out) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert reported == [hold]


def test_the_ledger_hears_of_the_loss_although_the_callback_fails(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    def on_lost(hold: Hold) -> None:
        raise ZeroDivisionError

    hold = hold_of(store, manual_keeper, on_lost=on_lost)
    hold.__enter__()
    with pytest.raises(ZeroDivisionError):
        hold._held.mark_lost("thief has held it")

    assert store.losses == ["thief has held it"]


def test_a_hold_without_callback_is_lost_in_silence(hold: Hold) -> None:
    with pytest.raises(LeaseLost), hold:
        hold._held.mark_lost("thief has held it")
