"""The rules of leases and registers find what was planted, and nothing in what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.chaos.changes import Change
from tests.chaos.checks import (
    beliefs_are_disjoint,
    none_granted_early,
    taken_over_in_time,
    tokens_rise,
    works_again,
    writes_follow,
)
from tests.chaos.faults import FAULTS, plan
from tests.chaos.history import FAILED, OK, UNKNOWN, Operation
from tests.chaos.workload import Violation

Rule = Callable[[Sequence[Operation]], list[Violation]]


def at(
    began: float,
    ended: float | None,
    process: str,
    name: str,
    outcome: str = OK,
    result: dict[str, Any] | None = None,
    **value: Any,
) -> Operation:
    """Return an operation on the resource "door"; times are in seconds."""
    end = None if ended is None else int(ended * 1e9)
    return Operation(process, 0, name, "door", int(began * 1e9), end, outcome, value, result or {})


def acquire(began: float, ended: float, process: str, token: int, until: float) -> Operation:
    result = {"token": token, "trusted_until": int(until * 1e9)}
    return at(began, ended, process, "acquire", result=result)


def believe(moment: float, process: str, token: int, until: float) -> Operation:
    return at(moment, moment, process, "believe", token=token, trusted_until=int(until * 1e9))


def renew(began: float, ended: float, process: str, token: int, until: float) -> Operation:
    result = {"trusted_until": int(until * 1e9)}
    return at(began, ended, process, "renew", result=result, token=token)


def rules(violations: Sequence[Violation]) -> list[str]:
    return [each.rule for each in violations]


TERM = acquire(1.0, 1.1, "a-1", 5, until=3.0)

GOOD = {
    "after the trust of the last": [TERM, acquire(1.5, 3.1, "b-2", 6, until=5.0)],
    "after its release began": [
        TERM,
        at(1.5, 2.0, "a-1", "release", token=5),
        acquire(1.4, 1.6, "b-2", 6, until=3.5),
    ],
    "after it noticed the loss": [
        TERM,
        at(1.5, 1.5, "a-1", "lost", token=5),
        acquire(1.4, 1.6, "b-2", 6, until=3.5),
    ],
    "an old belief that was noted late": [
        TERM,
        acquire(2.9, 3.1, "b-2", 6, until=5.0),
        believe(4.0, "a-1", 5, until=3.0),
    ],
    "an attempt that nobody can tell of": [
        TERM,
        at(1.2, None, "b-2", "acquire", UNKNOWN),
    ],
}
BAD = {
    "before the trust of the last ended": [TERM, acquire(1.5, 2.9, "b-2", 6, until=5.0)],
    "renewed while another has it": [
        TERM,
        acquire(3.0, 3.2, "b-2", 6, until=5.0),
        renew(3.3, 3.4, "a-1", 5, until=5.3),
    ],
    "believed for longer": [
        TERM,
        believe(2.0, "a-1", 5, until=3.9),
        acquire(3.0, 3.2, "b-2", 6, until=5.0),
    ],
    "inside a long belief, after a short one": [
        acquire(1.0, 1.1, "a-1", 5, until=9.0),
        acquire(9.1, 9.2, "b-2", 6, until=9.3),
        acquire(4.0, 4.1, "c-3", 7, until=4.5),
    ],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_beliefs_one_after_the_other_are_right(history: list[Operation]) -> None:
    assert beliefs_are_disjoint(history) == []


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_two_beliefs_at_once_are_found(history: list[Operation]) -> None:
    assert rules(beliefs_are_disjoint(history)) == ["two holders at once"]


def test_tokens_of_grants_at_the_same_time_may_be_answered_in_any_order() -> None:
    history = [acquire(1.0, 2.0, "a-1", 6, 3.0), acquire(1.5, 1.8, "b-2", 5, 3.0)]

    assert tokens_rise(history) == []


@pytest.mark.parametrize(
    ("history", "rule"),
    [
        ([TERM, acquire(4.0, 4.1, "b-2", 4, 6.0)], "tokens rise"),
        ([TERM, acquire(4.0, 4.1, "b-2", 5, 6.0)], "a token is granted once"),
        (
            [TERM, acquire(4.0, 4.1, "b-2", 6, 6.0), renew(4.2, 4.3, "a-1", 5, 6.3)],
            "tokens rise",
        ),
    ],
    ids=["smaller", "equal", "renewed after a greater one"],
)
def test_a_token_that_does_not_rise_is_found(history: list[Operation], rule: str) -> None:
    assert rules(tokens_rise(history)) == [rule]


def change(moment: float, token: int, expires: float, released: float | None = None) -> Change:
    return Change(moment, "door", token, "somebody", expires, released)


@pytest.mark.parametrize(
    "changes",
    [
        [change(1.0, 5, 3.0), change(3.0, 6, 5.0)],
        [change(1.0, 5, 3.0), change(2.0, 5, 4.0), change(4.1, 6, 6.0)],
        [change(1.0, 5, 3.0), change(2.0, 5, 2.0, 2.0), change(2.1, 6, 4.1)],
    ],
    ids=["expired", "renewed and expired", "released"],
)
def test_grants_after_the_end_of_the_last_are_right(changes: list[Change]) -> None:
    assert none_granted_early(changes) == []


def test_a_grant_before_the_expiry_of_the_last_is_found() -> None:
    found = none_granted_early([change(1.0, 5, 3.0), change(2.0, 5, 4.0), change(3.9, 6, 6.0)])

    assert rules(found) == ["no grant before the expiry of the last"]


def test_a_smaller_token_in_the_table_is_found() -> None:
    found = none_granted_early([change(1.0, 5, 3.0), change(3.1, 4, 6.0)])

    assert rules(found) == ["tokens rise in the table"]


CLOCKS = at(0.0, 0.0, "chaos", "clocks", offset=0.0)


def fault(began: float, ended: float, name: str, **value: Any) -> Operation:
    return Operation("chaos", 0, "fault", name, int(began * 1e9), int(ended * 1e9), OK, value)


@pytest.mark.parametrize(
    ("granted", "more", "found"),
    [
        (3.5, [], 0),
        (7.0, [], 1),
        (7.0, [fault(3.1, 6.9, "black")], 0),
        (7.0, [at(3.1, 6.9, "chaos", "stall")], 0),
        (7.0, [at(9.0, 9.0, "chaos", "load", share=3.0)], 0),
        (7.0, [fault(3.1, 6.9, "stop", victims=["web-3"])], 0),
        (7.0, [fault(3.1, 6.9, "stop", victims=["a-1"])], 1),
        (7.0, [fault(2.0, 2.0, "kill", victims=["a-1"])], 1),
        (7.0, [fault(2.0, 2.0, "kill", victims=["b-2"])], 0),
    ],
    ids=[
        *("soon", "late", "no network", "no machine", "a loaded machine"),
        *(
            "the server stood still",
            "the holder stood still",
            "the holder died",
            "the waiter was hit",
        ),
    ],
)
def test_what_somebody_waits_for_is_granted_soon(
    granted: float, more: list[Operation], found: int
) -> None:
    history = [CLOCKS, TERM, acquire(2.0, granted + 0.1, "b-2", 6, 9.0), *more]
    changes = [change(1.0, 5, 3.0), change(granted, 6, granted + 2)]

    assert rules(taken_over_in_time(history, changes)) == ["taken over in time"] * found


@pytest.mark.parametrize(
    ("again", "more", "found"),
    [
        (12.0, [], 0),
        (40.0, [], 1),
        (40.0, [fault(11.0, 39.0, "black")], 0),
        (40.0, [at(11.0, 39.0, "chaos", "stall")], 0),
    ],
    ids=["soon", "late", "another fault", "no machine"],
)
def test_each_process_works_again_soon_after_a_fault(
    again: float, more: list[Operation], found: int
) -> None:
    history = [
        TERM,
        fault(9.0, 10.0, "cut"),
        at(again, again, "a-2", "acquire", FAILED),
        *more,
    ]

    assert rules(works_again(history)).count("works again after a fault") == found


def write(moment: float, name: str, read: tuple[int, str] | None, outcome: str = OK) -> Operation:
    result = {"read": read} if read else {}
    return at(moment, moment + 0.1, "a-1", "write", outcome, result, id=name)


@pytest.mark.parametrize(
    ("history", "final", "rule"),
    [
        ([write(1, "a", (0, "")), write(2, "b", (1, "a"))], (2, "b"), ""),
        # Written, though nobody was told.
        ([write(1, "a", None, UNKNOWN), write(2, "b", (1, "a"))], (2, "b"), ""),
        ([write(1, "a", None, UNKNOWN), write(2, "b", (0, ""))], (1, "b"), ""),
        ([write(1, "a", None, FAILED), write(2, "b", (0, ""))], (1, "b"), ""),
        (
            [write(1, "a", (0, "")), write(2, "b", (0, ""))],
            (1, "b"),
            "no update is lost",
        ),
        ([write(1, "a", (0, ""))], (0, ""), "an acknowledged write is there"),
        (
            [write(1, "a", (0, "")), write(2, "b", (1, "c"))],
            (2, "b"),
            "an acknowledged write is there",
        ),
        (
            [write(1, "a", None, FAILED), write(2, "b", (1, "a"))],
            (2, "b"),
            "no stale write is accepted",
        ),
        (
            [write(1, "a", (0, "")), write(2, "b", None, FAILED)],
            (2, "b"),
            "no stale write is accepted",
        ),
    ],
    ids=[
        *("one after the other", "written unseen", "unknown and not written", "refused"),
        *("lost", "gone at the end", "overwritten", "stale and read", "stale and last"),
    ],
)
def test_writes_follow_one_another(
    history: list[Operation], final: tuple[int, str], rule: str
) -> None:
    assert rules(writes_follow(history, {"door": final})) == ([rule] if rule else [])


def test_a_short_run_has_all_its_first_faults_and_each_alone() -> None:
    first = ["kill-child", "stop", "kill-parent", "kill-worker"]

    planned = plan(7, 5, [*FAULTS], first=first)

    assert [each.name for each in planned] == first
    ends = [each.begins + each.lasts for each in planned]
    assert all(end < after.begins for end, after in zip(ends, planned[1:], strict=False))


def test_a_seed_makes_one_plan_in_which_each_fault_comes() -> None:
    planned = plan(7, 200, [*FAULTS], first=["kill"])

    assert planned == plan(7, 200, [*FAULTS], first=["kill"])
    assert planned != plan(8, 200, [*FAULTS], first=["kill"])
    assert planned[0].name == "kill"
    assert {each.name for each in planned} == FAULTS.keys()
