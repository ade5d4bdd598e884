"""Planted histories: each rule finds what breaks it, and nothing in what does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.history import Operation
from tests.chaos.ledger import Attempt, Change, Slot, TaskFacts
from tests.chaos.task_rules import (
    SECOND,
    check_tasks,
    must_happen,
    published_in_order,
    slots_served_once,
)
from tests.chaos.workload import Violation

STORED = Change(
    at=1 * SECOND,
    task=7,
    tag="a",
    name="chaos.work",
    was=None,
    status="ready",
    attempts_was=None,
    attempts=0,
    max_attempts=1,
    token=0,
    holder="",
    due=1 * SECOND,
    processed_was=None,
    processed=None,
    unique_key=None,
    limit_key="",
    limit=None,
)


def then(before: Change, status: str, seconds: float, **more: Any) -> Change:
    """The next change of a task."""
    ends = {"processed": int(seconds * SECOND)} if status not in ("ready", "running") else {}
    return replace(
        before,
        at=int(seconds * SECOND),
        was=before.status,
        status=status,
        attempts_was=before.attempts,
        processed_was=before.processed,
        **{**ends, **more},
    )


RUNNING = then(STORED, "running", 2, attempts=1, token=1, holder="w")
DONE = then(RUNNING, "succeeded", 3, output={"token": 1})


def call(
    name: str,
    *,
    at: float = 1,
    lasting: float | None = 0.1,
    outcome: str = "ok",
    result: dict[str, Any] | None = None,
    resource: str = "",
    **value: Any,
) -> Operation:
    began = int(at * SECOND)
    ended = None if lasting is None else began + int(lasting * SECOND)
    if lasting is None:
        outcome = "unknown"
    return Operation("p", 0, name, resource, began, ended, outcome, value, result or {})


def handler(task: int = 7, token: int = 1, at: float = 2.1, **more: Any) -> Operation:
    return call("handler", at=at, task=task, token=token, **more)


ENQUEUED = call("enqueue", tag="a")
#: A history of one task that is as it should be.
GOOD = ([ENQUEUED, handler()], TaskFacts([STORED, RUNNING, DONE]))


def rules(operations: Iterable[Operation], facts: TaskFacts) -> list[str]:
    return [each.rule for each in check_tasks([*operations], facts)]


def test_a_task_that_was_stored_run_and_completed_breaks_no_rule() -> None:
    assert rules(*GOOD) == []


def stored_twice() -> TaskFacts:
    return TaskFacts([*GOOD[1].changes, *(replace(each, task=8) for each in GOOD[1].changes)])


@pytest.mark.parametrize(
    "calls, facts, broken",
    [
        ([ENQUEUED], TaskFacts(), True),
        ([call("enqueue", tag="a", outcome="unknown")], TaskFacts(), False),
        ([call("enqueue", tag="a", outcome="unknown"), handler()], GOOD[1], False),
        ([call("enqueue", tag="a", outcome="failed"), handler()], GOOD[1], True),
        ([call("enqueue", tag="a", outcome="failed")], TaskFacts(), False),
        ([call("enqueue", tag="a", outcome="unknown"), ENQUEUED, handler()], GOOD[1], False),
        ([handler()], GOOD[1], True),
        ([call("enqueue", tags=["a", "b"]), handler()], GOOD[1], True),
    ],
    ids=[
        "an acknowledged one is lost",
        "an unknown one is not stored",
        "an unknown one is stored",
        "one that was rolled back is stored",
        "one that was rolled back is not stored",
        "one that was sent again is stored once",
        "nobody enqueued it",
        "one of many is lost",
    ],
)
def test_what_is_stored_is_what_was_answered(
    calls: list[Operation], facts: TaskFacts, broken: bool
) -> None:
    assert rules(calls, facts) == ["stored as answered"] * broken


def test_an_acknowledged_task_that_is_stored_twice_is_found() -> None:
    facts = stored_twice()

    found = check_tasks([ENQUEUED, handler(), handler(task=8)], facts)

    assert [each.message for each in found] == ["task a is stored 2 times"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ([STORED, RUNNING], "task:7 a never ended: running since 2.000000"),
        (
            [STORED, RUNNING, DONE, then(DONE, "succeeded", 4)],
            "task:7 a ended as succeeded, succeeded",
        ),
        ([STORED, RUNNING, DONE, then(DONE, "ready", 4)], "task:7 a changed after its end"),
    ],
)
def test_a_task_that_does_not_end_once_is_found(changes: list[Change], message: str) -> None:
    found = check_tasks([ENQUEUED, handler()], TaskFacts(changes))

    assert [each.message for each in found] == [message]


def test_a_completion_of_an_attempt_that_has_lost_its_task_is_found() -> None:
    taken = then(RUNNING, "ready", 4, token=2)
    again = then(taken, "running", 5, token=3, attempts=2)
    late = then(again, "succeeded", 6, output={"token": 1})
    calls = [ENQUEUED, handler(lasting=4), handler(token=3, at=5, lasting=2)]

    found = check_tasks(calls, TaskFacts([STORED, RUNNING, taken, again, late]))

    assert [each.message for each in found] == [
        "task:7 a was completed by attempt 1 while 3 had it"
    ]


def test_a_completion_without_a_handler_that_returned_is_found() -> None:
    calls = [ENQUEUED, handler(outcome="failed")]
    assert rules(calls, GOOD[1]) == ["completed by its holder"]


def failing(reason: str = "w did not renew its lease in time") -> TaskFacts:
    """A task whose one attempt was taken from its worker."""
    failed = then(RUNNING, "failed", 4, token=2)
    return TaskFacts([STORED, RUNNING, failed], [Attempt(7, 1, "w", "lost", reason)])


def test_a_task_that_failed_and_never_began_is_found_where_nothing_befell_its_worker() -> None:
    assert rules([ENQUEUED], failing()) == ["begun before it failed"]
    assert rules([ENQUEUED, call("fault", resource="stop")], failing()) == []
    assert rules([ENQUEUED, handler(lasting=None)], failing()) == []


def test_a_parent_that_fails_what_never_began_is_found() -> None:
    killed = [
        Attempt(task, 1, "w:1", "lost", "its worker was killed by signal 9")
        for task in range(100, 110)
    ]
    calls = [ENQUEUED, handler()]
    began = [handler(task=task, lasting=None) for task in range(100, 110)]

    def unbegun(count: int) -> list[str]:
        return rules([*calls, *began[count:]], TaskFacts(GOOD[1].changes, killed))

    assert unbegun(0) == unbegun(3) == []
    assert unbegun(4) == ["begun before it failed"]


def test_a_task_that_failed_with_attempts_left_is_found() -> None:
    facts = failing()
    changes = [replace(each, max_attempts=3) for each in facts.changes]
    calls = [ENQUEUED, handler(outcome="failed")]
    assert rules(calls, TaskFacts(changes, facts.attempts)) == ["begun before it failed"]


def test_a_grant_that_begins_twice_is_found() -> None:
    assert rules([ENQUEUED, handler(), handler(at=2.5)], GOOD[1]) == ["begun once a grant"]


def test_what_began_and_is_handed_back_as_if_it_had_not_is_found() -> None:
    back = then(RUNNING, "ready", 3, attempts=0)
    again = then(back, "running", 4, attempts=1, token=2)
    changes = [STORED, RUNNING, back, again, then(again, "succeeded", 5, output={"token": 2})]
    calls = [ENQUEUED, handler(token=2, at=4.1)]

    assert rules(calls, TaskFacts(changes)) == []
    assert rules([*calls, handler(lasting=None)], TaskFacts(changes)) == ["begun once a grant"]
    returned = [Attempt(7, 1, "w", "returned", "the worker stops")]
    assert rules([*calls, handler(lasting=None)], TaskFacts(changes, returned)) == []
    spared = [Attempt(7, 1, "w", "lost", "with task:9, which may be the cause: not counted")]
    assert rules([*calls, handler(lasting=None)], TaskFacts(changes, spared)) == []


def test_a_task_that_nobody_cancelled_and_one_that_began_after_it_was_cancelled_are_found() -> None:
    cancelled = TaskFacts([STORED, then(STORED, "cancelled", 2)])
    cancel = call("cancel", tag="a")

    assert rules([ENQUEUED, cancel], cancelled) == []
    assert rules([ENQUEUED], cancelled) == ["cancelled by somebody"]
    assert rules([ENQUEUED, cancel, handler(at=3)], cancelled) == ["cancelled by somebody"]


def keyed(*tasks: int, overlap: bool) -> TaskFacts:
    """Tasks that have one unique key, one after the other, or all at once."""
    changes: list[Change] = []
    for number, task in enumerate(tasks):
        stored = replace(
            STORED, task=task, tag=f"k{task}", unique_key="k", at=(number + 1) * 10**10
        )
        running = then(stored, "running", number * 10 + 11, attempts=1, token=1)
        done = then(running, "succeeded", number * 10 + 12, output={"token": 1}, unique_key=None)
        changes += [stored, running, done]
    if overlap:
        changes.sort(key=lambda each: not each.is_stored)
    return TaskFacts(changes)


def test_two_holders_of_a_unique_key_are_found() -> None:
    calls = [
        part
        for task in (1, 2)
        for part in (call("enqueue", tag=f"k{task}"), handler(task=task, at=13))
    ]
    assert rules(calls, keyed(1, 2, overlap=False)) == []
    assert rules(calls, keyed(1, 2, overlap=True)) == ["one holder a unique key"]


def test_a_duplicate_of_a_task_that_did_not_have_the_key_is_found() -> None:
    facts = keyed(1, overlap=False)
    calls = [call("enqueue", tag="k1"), handler(task=1, at=11)]

    def asking(at: float, task: int) -> list[str]:
        duplicate = {"duplicate": task}
        late = call("enqueue", at=at, tag="b", unique_key="k", result=duplicate)
        return rules([*calls, late], facts)

    assert asking(11.5, 1) == []
    assert asking(11.5, 2) == ["one holder a unique key"]
    assert asking(20, 1) == ["one holder a unique key"]


def limited(count: int, limit: int) -> tuple[list[Operation], TaskFacts]:
    """So many tasks of one concurrency key that run at once."""
    stored = [
        replace(STORED, task=task, tag=f"l{task}", limit_key="l", limit=limit)
        for task in range(count)
    ]
    running = [then(each, "running", 2, attempts=1, token=1) for each in stored]
    done = [then(each, "succeeded", 3, output={"token": 1}) for each in running]
    calls = [
        part
        for task in range(count)
        for part in (call("enqueue", tag=f"l{task}"), handler(task=task))
    ]
    return calls, TaskFacts([*stored, *running, *done])


def test_more_running_tasks_of_a_key_than_its_limit_are_found() -> None:
    assert rules(*limited(2, 2)) == []
    assert rules(*limited(3, 2)) == ["no more than the limit"]


def believing(task: int, token: int, since: int, until: int) -> Operation:
    held = {"held": [since * SECOND, until * SECOND]}
    return handler(task, token, limit_key="l", limit=1, result=held)


@pytest.mark.parametrize("since, broken", [(2, True), (4, False)])
def test_handlers_that_believe_at_once_are_found(since: int, broken: bool) -> None:
    first, second = believing(7, 1, 1, 3), believing(7, 2, since, 5)
    other = replace(second, value={**second.value, "task": 8})

    attempts = rules([ENQUEUED, first, second], GOOD[1])
    assert set(attempts) == ({"one believer a task", "no more than the limit"} if broken else set())
    tasks = rules([ENQUEUED, first, other], GOOD[1])
    assert tasks == ["no more than the limit"] * broken


def waiting(*more: Operation, until: float = 30) -> list[str]:
    """A task that is due all the time, and a fault from 5 s to 6 s."""
    facts = TaskFacts([STORED, then(STORED, "running", 28, attempts=1, token=1)])
    fault = call("fault", at=5, lasting=1, resource="stop")
    found = check_tasks([ENQUEUED, fault, call("note", at=until), *more], facts)
    return [each.rule for each in found if each.rule != "ends once"]


def test_workers_that_do_not_work_soon_after_a_fault_are_found() -> None:
    assert waiting() == ["worked again"]
    assert waiting(handler(at=15.9)) == []
    assert waiting(handler(at=16.1)) == ["worked again"]
    assert waiting(until=15) == []
    assert waiting(call("fault", at=10, lasting=10, resource="cut")) == []
    assert waiting(call("stall", at=8, lasting=15)) == []


def schedule(*moments: int, tasks: Iterable[int | None] = (1, 2, 3)) -> list[Violation]:
    stored = [replace(STORED, task=task, tag=None, name="tick") for task in (1, 2, 3)]
    slots = [Slot("tick", at, task) for at, task in zip(moments, tasks, strict=True)]
    return [*slots_served_once(TaskFacts(stored, slots=slots), "tick", every=10)]


def test_moments_of_a_schedule_that_are_not_served_once_are_found() -> None:
    def messages(*moments: int, **more: Any) -> list[str]:
        return [each.message for each in schedule(*moments, **more)]

    assert messages(10, 20, 30) == []
    assert messages(10, 20, 40) == ["tick served 20 and then 40"]
    assert messages(10, 20, 20) == ["tick served 20 twice"]
    assert messages(10, 20, 30, tasks=(1, 2, 2)) == [
        "task:2 is of 2 slots of tick",
        "task:3 is of no slot of tick",
    ]


def publish(tag: str, outcome: str = "ok") -> Operation:
    return call("publish", tag=tag, outcome=outcome)


def receive(tag: str, sequence: int, key: str = "k") -> Operation:
    return call("receive", tag=tag, sequence=sequence, resource=key)


@pytest.mark.parametrize(
    "calls, broken",
    [
        ([publish("a"), publish("b"), receive("a", 1), receive("b", 2), receive("a", 1)], []),
        ([publish("a"), publish("b"), receive("b", 2), receive("a", 1)], ["published in order"]),
        ([publish("a"), publish("b"), receive("b", 2, ""), receive("a", 1, "")], []),
        ([publish("a")], ["published"]),
        ([publish("a", "unknown")], []),
        ([publish("a", "failed"), receive("a", 1)], ["published"]),
    ],
    ids=["in order", "out of order", "without keys", "lost", "unknown", "rolled back"],
)
def test_messages_that_are_lost_or_out_of_order_are_found(
    calls: list[Operation], broken: list[str]
) -> None:
    assert [each.rule for each in published_in_order(calls)] == broken


def test_what_faults_must_provoke_and_did_not_is_a_zero() -> None:
    def found(count: int, victim: str) -> dict[str, int]:
        kills = [call("fault", resource="kill", hits=1, victims=[victim]) for _ in range(count)]
        return must_happen([ENQUEUED, handler(), *kills], GOOD[1], ["succeeded"], ["bare"])

    assert (
        found(4, "bare-17")
        == found(5, "produce-0-18")
        == {
            "tasks stored": 1,
            "grants": 1,
            "succeeded": 1,
        }
    )
    assert found(5, "bare-17")["take-overs"] == 0
