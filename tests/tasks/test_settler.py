"""The thread that stores what came of attempts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tasks import settler
from tasks.settler import Settler
from tests.processes import wait_for


class Result:
    """What a place hands in."""

    execution = object()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was stored, in the order it was."""
    found: list[Any] = []
    monkeypatch.setattr(settler, "settle", lambda batch, hear: found.extend(batch))
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
