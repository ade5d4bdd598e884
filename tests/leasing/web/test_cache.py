"""What was read a moment ago, for all who ask for the same again."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from leasing.web import cache
from leasing.web.cache import Kept, Shelf


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Kept[int]:
    """Counts how often it was read, under a clock that stands at 100."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    counter = iter(range(1, 100))
    return Kept(lambda anew: next(counter), fresh_for=2.5)


def at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: moment)


def test_what_is_fresh_is_read_once_and_says_its_age(
    numbers: Kept[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert numbers.get().value == 1
    at(monkeypatch, 102.0)
    assert (numbers.get().value, numbers.get().age) == (1, timedelta(seconds=2))


def test_what_is_stale_is_read_anew(numbers: Kept[int], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers.get()
    at(monkeypatch, 102.5)
    assert (numbers.get().value, numbers.get().age) == (2, timedelta(0))


def test_who_wants_it_anew_gets_it_and_leaves_it_for_the_others(numbers: Kept[int]) -> None:
    numbers.get()
    assert numbers.get(anew=True).value == 2
    assert numbers.get().value == 2


def test_another_database_is_another_value(
    numbers: Kept[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers.get()
    monkeypatch.setattr(cache, "leasing_settings", type("Settings", (), {"DATABASE": "elsewhere"}))
    assert numbers.get().value == 2


def test_what_cannot_be_read_leaves_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([1])
    broken = Kept(lambda anew: next(values), fresh_for=60.0)
    broken.get()
    with pytest.raises(StopIteration):
        broken.get(anew=True)
    assert broken.get().value == 1


# Many


class Reads:
    """Names that were read, and how to read them from a shelf."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def of(self, shelf: Shelf[str], names: str, *, anew: bool = False) -> str:
        """What was read to get all of ``names`` from ``shelf``."""
        self.names = []
        wanted = {name: (name, lambda name=name: self._read(name)) for name in names}
        assert "".join(shelf.get(wanted, anew=anew).values()) == names
        return "".join(self.names)

    def _read(self, name: str) -> str:
        self.names.append(name)
        return name


def test_of_many_the_stale_ones_are_read_in_turns_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf, reads = Shelf[str](lambda value: 60.0 if value == "x" else 2.5, at_once=2), Reads()
    at(monkeypatch, 100.0)
    assert reads.of(shelf, "cx") == "cx"
    at(monkeypatch, 101.0)
    assert reads.of(shelf, "abcdx") == "abd"
    at(monkeypatch, 103.0)
    assert reads.of(shelf, "abcdx") == "c"
    at(monkeypatch, 104.0)
    assert reads.of(shelf, "abcdx") == "ab"
    assert reads.of(shelf, "abcdx") == "d"
    assert reads.of(shelf, "abcdx") == ""
    assert reads.of(shelf, "abcdx", anew=True) == "abcdx"
    monkeypatch.setattr(cache, "leasing_settings", type("Settings", (), {"DATABASE": "elsewhere"}))
    assert reads.of(shelf, "a") == "a"


def test_a_shelf_has_room_for_what_was_read_last() -> None:
    shelf, reads = Shelf[str](lambda value: 60.0, at_once=2, room=2), Reads()
    reads.of(shelf, "abc")
    assert reads.of(shelf, "bc") == ""
    assert reads.of(shelf, "ab") == "a"
