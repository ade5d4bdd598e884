"""The thread that stores what came of attempts."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_django import Settings

from leasing.holding.keeper import Keeper
from tasks.execution import completer
from tasks.execution.completer import Completer
from tests.leasing.support import FakeClock
from tests.processes import wait_for
from tests.tasks.workers import PATIENCE


class Result:
    """The outcome that a slot hands in."""

    attempt = object()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the outcomes that were stored, in their order."""
    found: list[Any] = []
    monkeypatch.setattr(completer, "store_outcomes", lambda batch, *_: found.extend(batch))
    return found


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.django_db
@pytest.mark.parametrize("again", ["another result", "a look"])
def test_results_wait_while_there_can_be_no_thread_more(
    again: str, stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = Completer(lambda: False, bool)
    results: Any = [Result()]
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        storing.put(results[0], {})
    assert (stored, storing.attempts) == ([], [Result.attempt])

    if again == "a look":
        storing.replace_stuck_writer()
    else:
        results.append(Result())
        storing.put(results[1], {})

    wait_for(lambda: stored == results and not storing.attempts)
    storing.close()


def test_it_closes_with_the_thread_that_has_stored_all(stored: list[Any]) -> None:
    """Or the process would end with a connection open."""
    storing = Completer(lambda: False, lambda batch: threading.Event().wait(0.2))
    result: Any = Result()
    storing.put(result, {})
    (writer,) = (each for each in threading.enumerate() if each.name == "task-results")
    wait_for(lambda: stored == [result] and not storing.attempts)

    storing.close(patience=30)

    assert not writer.is_alive()


def test_a_result_is_found_in_one_place_or_the_other_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a worker could take it for stored, and end before it is."""
    seen: list[list[Any]] = []
    result: Any = Result()

    class Running(dict[int, Any]):
        """Looks as what has ended leaves."""

        def pop(self, key: int, default: Any = None) -> Any:
            seen.append(storing.attempts)
            return super().pop(key, default)

    monkeypatch.setattr(
        completer, "store_outcomes", lambda batch, *_: seen.append(storing.attempts)
    )
    storing: Completer = Completer(lambda: False, lambda batch: seen.append(storing.attempts))
    running = Running({id(Result.attempt): Result.attempt})

    storing.put(result, running)
    wait_for(lambda: len(seen) == 3)
    storing.close(PATIENCE)

    assert seen == [[Result.attempt], [Result.attempt], []]
    assert running == {}


class Late(Result):
    """A result that was handed in at 1000 seconds."""

    ended_at = 1000.0

    def __init__(self, is_lost: bool = False, ttl: float = 30.0) -> None:
        claimed = SimpleNamespace(term=SimpleNamespace(seconds=ttl))
        self.attempt: Any = SimpleNamespace(is_lost=is_lost, claimed=claimed)


#: When to look at a result of 1000 seconds, the result, what failed at 1045 seconds, the answer.
STUCK: dict[str, tuple[float, Late, str, bool]] = {
    "three ttl": (1090.0, Late(), "", False),
    "longer than three ttl": (1090.1, Late(), "", True),
    "answers of short ttls": (1060.0, Late(ttl=4), "", False),
    "longer than four answers": (1060.1, Late(ttl=4), "", True),
    "nobody renews it": (9999.0, Late(is_lost=True), "", False),
    "the database was away": (1045 + 90.0, Late(), "database", False),
    "the database was away long ago": (1045 + 90.1, Late(), "database", True),
    "renewals failed": (1045 + 90.0, Late(), "renewals", False),
    "renewals failed long ago": (1045 + 90.1, Late(), "renewals", True),
}


@pytest.mark.parametrize(("now", "result", "away", "stuck"), STUCK.values(), ids=list(STUCK))
def test_what_is_not_stored_for_three_ttl_though_all_goes_well_means_that_the_worker_is_stuck(
    now: float,
    result: Late,
    away: str,
    stuck: bool,
    holder_clock: FakeClock,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TASK_QUEUE = {"ANSWER_TIMEOUT": 15}
    storing = Completer(lambda: False, bool)
    storing._waiting.append(result)  # type: ignore[arg-type]
    holder_clock.now = 1045.0
    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "draining", away == "renewals")
        patched.setattr(storing, "database_down", away == "database")
        storing.is_stuck()

    holder_clock.now = now
    assert storing.is_stuck() is stuck
