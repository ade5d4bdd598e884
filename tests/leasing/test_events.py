"""The hub: who hears what has happened, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from leasing.runtime.events import (
    during,
    followers,
    happened,
    is_heard,
    subscribe,
    unsubscribe,
)

TRIAL = "trial.event"


@pytest.fixture
def heard() -> list[str]:
    """What was called, in its order."""
    return []


@pytest.fixture
def hears(heard: list[str]) -> Iterator[Callable[..., None]]:
    """``hears(name, failed, error)`` subscribes to the trial."""
    subscribed: list[dict[str, Any]] = []

    def hear(name: str, failed: Any = heard.append, error: Exception | None = None) -> None:
        def subscriber(rows: Any, **details: Any) -> None:
            heard.append(name)
            if error is not None:
                raise error

        subscribed.append({TRIAL: subscriber})
        subscribe(subscribed[-1], failed)

    yield hear
    for each in subscribed:
        unsubscribe(each)
    assert not is_heard(TRIAL)


def test_the_latest_subscriber_hears_first(heard: list[str], hears: Callable[..., None]) -> None:
    hears("signals")
    hears("metrics")

    happened(TRIAL)

    assert heard == ["metrics", "signals"]


def test_what_may_refuse_comes_before_all_and_then_nobody_else_hears(
    heard: list[str], hears: Callable[..., None]
) -> None:
    hears("ledger", None, ZeroDivisionError())
    hears("metrics")

    with pytest.raises(ZeroDivisionError):
        happened(TRIAL)

    assert heard == ["ledger"]


def test_who_has_subscribed_twice_hears_once(heard: list[str]) -> None:
    subscriber = {TRIAL: lambda rows: heard.append("once")}
    for _ in range(2):
        subscribe(subscriber, None)
    happened(TRIAL)
    unsubscribe(subscriber)
    happened(TRIAL)

    assert heard == ["once"]


def test_what_happens_during_a_block_has_one_follower(heard: list[str]) -> None:
    @contextmanager
    def follower(about: str) -> Iterator[None]:
        heard.append(f"{about} begins")
        yield
        heard.append(f"{about} ends")

    with during(TRIAL, "unfollowed"):
        pass
    followers[TRIAL] = follower
    with during(TRIAL, "it"):
        heard.append("inside")
    del followers[TRIAL]

    assert heard == ["it begins", "inside", "it ends"]
