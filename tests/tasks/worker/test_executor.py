"""How an executor judges its slots: how much it has room for, what goes back, when it is stuck."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from leasing.runtime.clock import clock as holders_clock
from tasks.registry import Kind
from tasks.runtime.marks import Marks
from tasks.worker.executor import (
    ALL_END_IN,
    CAREFUL,
    CONFIRM_AFTER,
    MAX_IN_A_MOMENT,
    MAX_PREFETCH,
    MOMENT,
    Executor,
)
from tests.leasing.support import FakeClock
from tests.tasks.workers import patient


class Settled:
    """A completer that has stored everything."""

    executions: tuple[()] = ()

    def put(self, outcome: Any) -> None: ...
    def wake(self, now: float, *, is_busy: bool) -> None: ...


@dataclass(eq=False)
class Attempt:
    """A claimed task, as far as an executor looks at it."""

    queue: str = "default"
    priority: int = 0
    interval: float = 10.0
    is_over: bool = False
    carrier: threading.Thread | None = None
    sent_at: float = field(default_factory=lambda: holders_clock())

    @property
    def claimed(self) -> Attempt:
        return self

    @property
    def hold(self) -> Attempt:
        return self


class ManualExecutor(Executor):
    """An executor whose slots take a task, and end it, when the test has them do."""

    kind = Kind.THREAD

    def __init__(self, slots: int, **seconds: float) -> None:
        completer: Any = Settled()
        super().__init__(slots, completer, lambda: None, timing=patient(**seconds))

    def _begin(self, count: int) -> None: ...

    def come(self, *attempts: Any) -> None:
        self.submit(attempts)

    def take(self) -> Any:
        """A slot takes the first that waits, and does not begin yet."""
        attempt: Any = self._waiting.popleft()
        attempt.carrier = threading.current_thread()
        return attempt

    def begin(self) -> Any:
        """A slot takes the first that waits, and begins."""
        attempt = self.take()
        self._begun[id(attempt)] = holders_clock()
        return attempt

    def end(self, attempt: Any, seconds: float) -> None:
        """``attempt`` ends, and has taken so many ``seconds``."""
        outcome: Any = SimpleNamespace(execution=attempt)
        self._end(outcome, holders_clock() - seconds)

    def give_up(self, attempt: Any) -> None:
        """Another thread has given up ``attempt``, as ``tend`` does."""
        del self._running[id(attempt)]

    @property
    def waiting(self) -> list[Any]:
        return list(self._waiting)


def executor_of(slots: int, *seconds: float, **timing: float) -> ManualExecutor:
    """An executor whose latest tasks took so many ``seconds``, one after the other."""
    executor = ManualExecutor(slots, **timing)
    for each in seconds:
        executor.come(Attempt())
        executor.end(executor.begin(), each)
    return executor


@pytest.fixture(autouse=True)
def clock(holder_clock: FakeClock) -> FakeClock:
    """The clock by which executors judge, moved by hand."""
    return holder_clock


@pytest.fixture
def _under_a_parent(use_marks: Callable[[Marks | None], None]) -> None:
    """A parent reads the marks of this worker."""
    use_marks(Marks(8, 0))


# Claiming ahead


class Line:
    """An executor of ``slots`` slots with as many tasks of ten milliseconds behind those that run
    as fit."""

    def __init__(self, clock: FakeClock, slots: int) -> None:
        self.clock = clock
        self.executor = executor_of(slots, *[0.01] * 100, long_after=0.1)
        self.tasks: list[Any] = []
        for _ in range(slots):
            self.come()
            self.executor.begin()
        for _ in range(self.executor.prefetch):
            self.come()

    def come(self) -> None:
        self.tasks.append(Attempt())
        self.executor.come(self.tasks[-1])

    def end(self, count: int) -> None:
        """End the first tasks; the next begin."""
        for _ in range(count):
            self.executor.end(self.tasks.pop(0), 0.01)
            self.executor.begin()

    def end_long(self, count: int) -> None:
        """End the first tasks, which began when they were claimed."""
        for _ in range(count):
            task = self.tasks.pop(0)
            self.executor.end(task, self.clock() - task.sent_at)

    def look_in_time(self) -> list[Any]:
        """Look when there is a reason to, as long as nothing else happens."""
        until = self.executor.waits_until
        assert until is not None and until > self.clock.now
        self.clock.now = until
        return self.executor.overdue()


@pytest.mark.parametrize(
    ("seconds", "fewest", "most"),
    [
        ([], 0, 0),
        ([1.0] * 9, 0, 0),
        ([0.0], 2, 2),
        ([0.0] * 1000, MAX_PREFETCH, MAX_PREFETCH),
        ([0.01] * 40, 9, 12),
        ([0.0] * 50 + [2.0] * 5, 0, 0),
        ([0.01] * 20 + [2.0, 0.01] * 2 + [2.0], 9, 12),
    ],
    ids=["none", "a second", "one", "many", "short", "long since", "some long"],
)
def test_so_many_are_claimed_ahead_as_the_slots_end_in_a_moment(
    seconds: list[float], fewest: int, most: int
) -> None:
    executor = executor_of(4, *seconds)

    assert fewest <= executor.prefetch <= most
    assert executor.room == 4 + executor.prefetch


def test_a_worker_without_a_parent_claims_what_must_not_wait_for_free_slots_alone() -> None:
    executor = executor_of(4, *[0.0] * CAREFUL * 600)
    executor.may_prefetch = False

    assert (executor.prefetch, executor.room) == (0, 4)


@pytest.mark.usefixtures("_under_a_parent")
@pytest.mark.parametrize(
    ("count", "seconds", "ahead"),
    [
        (CAREFUL - 1, 0.0, 0),
        (CAREFUL * 5, 0.0, 5),
        (CAREFUL * 600, 0.0, MAX_IN_A_MOMENT),
        (CAREFUL * 500, MOMENT / 3.2, 8),
        (CAREFUL * 500, MOMENT, 0),
        (CAREFUL * 500, 1.0, 0),
    ],
)
def test_what_must_not_wait_is_claimed_ahead_only_where_slots_end_it_in_a_moment(
    count: int, seconds: float, ahead: int
) -> None:
    """And one for so many that have ended: none by a worker that has just been started."""
    executor = executor_of(4, *[seconds] * count)
    executor.may_prefetch = False

    assert executor.prefetch == ahead
    # Where all slots end before a claim would, it waits for all of them.
    assert executor.low == ahead // 2 + (0 if seconds < MOMENT / 4 else 3)


@pytest.mark.usefixtures("_under_a_parent")
def test_what_must_not_wait_is_no_more_than_what_slots_that_take_turns_end_soon(
    clock: FakeClock,
) -> None:
    executor = executor_of(4, *[0.0] * CAREFUL * 600)
    executor.may_prefetch = False

    executor.come(*[Attempt() for _ in range(10)])
    executor.look_at = 0
    for _ in range(10):
        attempt = executor.begin()
        clock.advance(ALL_END_IN / 40)
        executor.end(attempt, 0.0)

    assert 35 <= executor.prefetch <= 36


def test_what_was_to_end_at_once_and_does_not_is_judged_when_it_is_long(
    clock: FakeClock,
) -> None:
    executor = executor_of(4, *[0.0] * (CAREFUL - 1), long_after=0.1)
    executor.may_prefetch = False
    executor.come(Attempt())
    executor.begin()
    executor.look_at = executor.low

    assert (executor.room, executor.judges_in) == (0, 0.1)
    clock.advance(0.1)
    assert (executor.room, executor.judges_in) == (3, math.inf)


def test_all_that_waits_goes_back_once_every_slot_is_at_a_long_task(
    clock: FakeClock,
) -> None:
    line = Line(clock, 2)
    began_at, waiting = clock.now, line.tasks[2:]
    assert waiting and line.executor.overdue() == []

    assert line.look_in_time() == []
    assert clock.now == pytest.approx(began_at + 0.1)
    assert line.look_in_time() == waiting[::-1]

    assert clock.now == pytest.approx(began_at + 0.1 + CONFIRM_AFTER)
    assert line.executor.executions == line.tasks[:2]
    assert line.executor.room == line.executor.prefetch == 0
    assert line.executor.waits_until is None
    line.end_long(2)
    assert line.executor.prefetch == 4  # a few at first, and the pace is still that of the others


def test_long_tasks_count_once_for_all_that_is_given_back_behind_them(
    clock: FakeClock,
) -> None:
    """The short ones end elsewhere: what ends here are mostly long ones."""
    line = Line(clock, 4)

    def fill(short: int) -> None:
        for _ in range(4):
            line.come()
            line.executor.begin()
        for _ in range(short):
            line.come()
        line.end(short)

    def wait_behind_long_ones() -> None:
        line.come()
        while not line.look_in_time():
            pass
        del line.tasks[4:]
        clock.now += 2
        line.end_long(4)

    for short in (0, 4, 4):
        if short:
            fill(short)
        wait_behind_long_ones()
    assert line.executor.prefetch > 0

    for _ in range(4):
        fill(0)
        wait_behind_long_ones()
    assert line.executor.prefetch == 0


def test_a_line_that_has_emptied_is_judged_from_its_own_beginning_on(
    clock: FakeClock,
) -> None:
    line = Line(clock, 2)
    assert line.look_in_time() == []
    line.end(len(line.executor.waiting))
    assert line.executor.overdue() == []

    clock.now += 0.2
    for _ in range(8):
        line.come()
    assert line.executor.overdue() == []
    clock.now += CONFIRM_AFTER
    assert len(line.executor.overdue()) == 8


def test_behind_some_long_tasks_as_many_wait_as_the_other_slots_end_soon(
    clock: FakeClock,
) -> None:
    line = Line(clock, 8)
    clock.now += 0.05
    line.end(2)
    waiting = line.tasks[8:]

    assert line.look_in_time() == []
    kept = line.executor.prefetch
    returned = line.look_in_time()

    assert 0 < kept < len(waiting) / 2
    assert returned == waiting[kept:][::-1]


def test_of_a_few_too_many_behind_a_long_task_none_goes_back(clock: FakeClock) -> None:
    line = Line(clock, 8)
    clock.now += 0.06
    line.end(7)
    clock.now += 0.05  # one slot is at a long task, the others are not
    kept = line.executor.prefetch
    while len(line.executor.waiting) < kept + kept // 2:
        line.come()

    for _ in range(3):
        assert line.executor.overdue() == []
        clock.now += CONFIRM_AFTER
    line.come()
    assert line.executor.overdue() == []
    clock.now += CONFIRM_AFTER
    assert len(line.executor.overdue()) == kept // 2 + 1


def test_tasks_that_take_as_long_as_others_are_not_long(clock: FakeClock) -> None:
    executor = executor_of(4, *[1.0] * 16, long_after=0.1)
    executor.come(*[Attempt() for _ in range(4)])
    for _ in range(4):
        executor.begin()
    executor.is_outranked = True

    clock.advance(2.0)
    assert executor.room == 4
    clock.advance(1.0)
    assert executor.room == 0


def test_an_executor_has_room_for_what_goes_before_what_waits_once(
    clock: FakeClock,
) -> None:
    line = Line(clock, 4)
    assert line.executor.room == 0

    for queue, priority in (("default", 0), ("default", -1), ("mail", 1)):
        line.executor.note_ready(queue, priority)
        assert line.executor.room == 0
    line.executor.note_ready("default", 1)
    assert line.executor.room == 4

    clock.now += 0.2
    assert line.executor.room == 0  # at long tasks: it would wait for these


def test_what_goes_before_what_waits_has_no_more_wait_than_twice_as_many(
    clock: FakeClock,
) -> None:
    """Most of what is claimed for a few that are more urgent may be like what waits."""
    line = Line(clock, 4)
    most = 2 * len(line.tasks)
    for _ in range(most):
        line.executor.note_ready("default", 1)
        for _ in range(line.executor.room):
            line.come()

    assert len(line.tasks) == most
    line.executor.look_for_room()
    assert line.executor.look_at == most - 1


def test_of_what_is_claimed_only_what_is_more_urgent_is_compared_with_each_that_waits(
    clock: FakeClock,
) -> None:
    """A thousand that go behind a thousand would take a tenth of a second, as others come."""
    reads: list[None] = []

    class Read(Attempt):
        @property
        def claimed(self) -> Attempt:
            reads.append(None)
            return self

    executor = executor_of(4, *[0.01] * 100)
    waiting = [Read() for _ in range(9)]
    executor.come(*waiting)
    executor.is_outranked = True
    reads.clear()
    claimed = [Attempt(q, priority=p) for q, p in (("default", 1), ("default", 0), ("mail", 9))]

    executor.come(*claimed)

    assert executor.waiting == [claimed[0], *waiting, *claimed[1:]]
    assert len(reads) <= 2 * len(waiting) + 2  # once for the lowest of them, and one comparison


# What nobody carries


def test_a_task_that_neither_waits_nor_has_begun_is_given_up(clock: FakeClock) -> None:
    executor = ManualExecutor(1)
    waits: Any = Attempt()
    lost: Any = Attempt()
    executor.come(lost, waits)
    executor.take().carrier = None

    clock.advance(9.9)
    assert executor.tend() == []
    clock.advance(0.1)
    assert executor.tend() == [lost]
    assert executor.executions == [waits]


# Stuck


def at(executor: ManualExecutor, interval: float = 10.0) -> Any:
    """A task that a slot of ``executor`` is at."""
    executor.come(Attempt(interval=interval))
    return executor.begin()


def test_an_executor_whose_slots_all_have_tasks_that_are_over_is_stuck_in_the_end(
    holder_clock: FakeClock,
) -> None:
    executor = ManualExecutor(1)
    execution = at(executor)

    assert not executor.is_stuck()
    execution.is_over = True
    assert not executor.is_stuck()
    holder_clock.now += 30
    assert not executor.is_stuck()
    holder_clock.now += 0.1
    assert executor.is_stuck()


def test_an_executor_whose_slots_were_at_other_tasks_meanwhile_is_not_stuck(
    holder_clock: FakeClock,
) -> None:
    executor = ManualExecutor(1)
    for _ in range(3):
        execution = at(executor)
        execution.is_over = True
        assert not executor.is_stuck()
        holder_clock.now += 20
        assert not executor.is_stuck()
        executor.end(execution, 20.0)


def test_an_executor_whose_tasks_all_wait_is_not_stuck(holder_clock: FakeClock) -> None:
    executor = ManualExecutor(1)
    executor.come(Attempt(interval=0.0, is_over=True))

    assert not executor.is_stuck()
    holder_clock.advance(1)
    assert not executor.is_stuck()
