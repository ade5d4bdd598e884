"""The thread that stores what came of attempts."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from tasks.execution import completer
from tasks.execution.completer import Settler
from tests.processes import wait_for


class Result:
    """What a place hands in."""

    execution = object()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was stored, in the order it was."""
    found: list[Any] = []
    monkeypatch.setattr(completer, "settle", lambda batch, hear: found.extend(batch))
    return found


@pytest.mark.django_db
@pytest.mark.parametrize("again", ["wake", "take_over"])
def test_results_wait_while_there_can_be_no_thread_more(
    again: str, stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    storing = Settler(lambda: False, bool)
    result: Any = Result()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        storing.put(result)
        storing.wake()
    assert (stored, storing.executions) == ([], [Result.execution])

    getattr(storing, again)()

    wait_for(lambda: stored == [result] and not storing.executions)
    storing.close()


def test_a_result_whose_storing_begins_meanwhile_is_not_missed() -> None:
    """Or a worker could take it for stored, and end before it is."""
    storing = Settler(lambda: False, bool)
    result: Any = Result()

    class Looked(dict[Any, Any]):
        """Begins to store what waits as soon as somebody has looked at what is under way."""

        def values(self) -> Any:
            found = list(super().values())
            self[threading.current_thread()] = list(storing._waiting)
            storing._waiting.clear()
            return found

    class Left(deque[Any]):
        """The same, once somebody has looked at what waits."""

        def copy(self) -> Any:
            found = deque(self)
            dict.__setitem__(storing._under_way, threading.current_thread(), list(found))
            self.clear()
            return found

    for moving in ("_under_way", "_waiting"):
        storing._under_way, storing._waiting = {}, deque()
        setattr(storing, moving, Looked() if moving == "_under_way" else Left())
        storing.put(result)

        assert set(storing.executions) == {Result.execution}
