"""Readings that polls share."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.core.cache.backends import base, locmem
from pytest_django import Settings

from leasing.web.cache import shared


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock of the cache, in which readings are shared as where it is served."""
    clock = SimpleNamespace(now=100.0)
    for module in (base, locmem):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    return lambda now: setattr(clock, "now", now)


class Numbers:
    """Counts how often it was read."""

    def __init__(self) -> None:
        self.read = iter(range(1, 100)).__next__

    def get(self, key: object = "numbers", *, fresh: bool = False, **how: float) -> int:
        return shared(key, self.read, fresh=fresh, **how)


def test_a_reading_is_shared_for_a_moment(at: Callable[[float], None]) -> None:
    numbers = Numbers()
    assert numbers.get() == 1
    at(102.0)
    assert numbers.get() == 1
    at(102.5)
    assert numbers.get() == 2


def test_a_reading_may_be_shared_for_longer(at: Callable[[float], None]) -> None:
    numbers = Numbers()
    numbers.get(seconds=10)
    at(109.9)
    assert numbers.get() == 1


@pytest.mark.usefixtures("at")
def test_a_fresh_reading_is_left_to_the_others() -> None:
    numbers = Numbers()
    numbers.get()
    assert numbers.get(fresh=True) == numbers.get() == 2


@pytest.mark.usefixtures("at")
def test_other_keys_and_other_databases_have_readings_of_their_own(
    settings: Settings,
) -> None:
    numbers = Numbers()
    assert [numbers.get(("a", "bc")), numbers.get(("ab", "c")), numbers.get(("a", "bc"))] == [
        1,
        2,
        1,
    ]
    settings.LEASING = {"DATABASE": "elsewhere"}
    assert numbers.get(("a", "bc")) == 3


@pytest.mark.usefixtures("at")
def test_a_reading_that_fails_leaves_the_one_before() -> None:
    numbers = Numbers()
    numbers.get()
    with pytest.raises(ZeroDivisionError):
        shared("numbers", lambda: 1 // 0, fresh=True)
    assert numbers.get() == 1


@pytest.mark.usefixtures("at")
def test_what_somebody_does_to_a_reading_is_not_shared() -> None:
    shared("list", lambda: [1], fresh=False).append(2)
    assert shared("list", lambda: [3], fresh=False) == [1]
