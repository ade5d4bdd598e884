"""How an executor judges its slots: how much it has room for, what goes back, when it is stuck."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from leasing.runtime.clock import clock as holders_clock
from tasks.registry import Kind
from tasks.worker.executor import CONFIRM_AFTER, MAX_PREFETCH, Executor
from tests.leasing.support import FakeClock
from tests.tasks.workers import patient


class Settled:
    """A completer that has stored everything."""

    attempts: tuple[()] = ()

    def put(self, outcome: Any, running: dict[int, Any]) -> None:
        running.pop(id(outcome.attempt), None)


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
        outcome: Any = SimpleNamespace(attempt=attempt)
        self._end(outcome, holders_clock() - seconds)

    def give_up(self, attempt: Any) -> None:
        """Another thread has given up ``attempt``, as ``ensure_running`` does."""
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
    ("seconds", "ahead"),
    [
        ([], 0),
        ([1.0] * 9, 0),
        ([0.0], 2),
        ([0.0] * 1000, MAX_PREFETCH),
        ([0.01] * 40, 12),
        ([0.01] * 5, 10),
        ([0.0] * 50 + [2.0] * 5, 0),
        ([2.0] * 50 + [0.01] * 16, 12),
    ],
    ids=["none", "a second", "one", "many", "short", "few", "long since", "short since"],
)
def test_so_many_are_claimed_ahead_as_the_slots_end_in_a_moment(
    seconds: list[float], ahead: int
) -> None:
    executor = executor_of(4, *seconds)

    assert executor.prefetch == pytest.approx(ahead, abs=1)
    assert executor.room == 4 + executor.prefetch
    assert executor.low == 3 + executor.prefetch // 2


def test_all_that_waits_goes_back_once_every_slot_is_at_a_long_task(clock: FakeClock) -> None:
    line = Line(clock, 2)
    began_at, waiting = clock.now, line.tasks[2:]
    assert waiting and line.executor.overdue() == []

    assert line.look_in_time() == []
    assert clock.now == pytest.approx(began_at + 0.1)
    assert line.look_in_time() == waiting[::-1]

    assert clock.now == pytest.approx(began_at + 0.1 + CONFIRM_AFTER)
    assert line.executor.attempts == line.tasks[:2]
    assert line.executor.room == line.executor.prefetch == 0
    assert line.executor.waits_until is None
    line.end_long(1)
    assert line.executor.prefetch == 2  # a few at first


def test_nothing_goes_back_while_one_slot_is_at_no_long_task(clock: FakeClock) -> None:
    line = Line(clock, 4)
    for _ in range(3):
        clock.now += 0.09
        line.end(1)
        assert line.executor.overdue() == []
    line.end(1)
    line.executor.end(line.tasks.pop(0), 0.01)  # a slot that has not begun yet
    clock.now += 1
    assert line.executor.overdue() == []


def test_slots_that_went_on_meanwhile_were_not_at_long_tasks(clock: FakeClock) -> None:
    """The whole process had to wait."""
    line = Line(clock, 2)
    assert line.look_in_time() == []
    clock.now += CONFIRM_AFTER / 2
    line.end(2)
    clock.now += CONFIRM_AFTER / 2
    assert line.executor.overdue() == []


def test_what_has_waited_for_a_second_goes_back(clock: FakeClock) -> None:
    executor = executor_of(1, *[0.5] * 16, slot_wait=1.0)
    executor.come(Attempt())
    executor.begin()
    clock.now += 0.5
    waits = [Attempt(), Attempt()]
    executor.come(*waits)

    clock.now += 0.99
    assert executor.overdue() == []
    clock.now += 0.01
    returned: list[Any] = executor.overdue()
    assert returned == waits[::-1]


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
    assert line.executor.low == most - 1


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
    assert executor.ensure_running() == []
    clock.advance(0.1)
    assert executor.ensure_running() == [lost]
    assert executor.attempts == [waits]


# Stuck


def at(executor: ManualExecutor) -> Any:
    """A task that a slot of ``executor`` is at."""
    executor.come(Attempt(interval=10.0))
    return executor.begin()


def test_an_executor_whose_slots_all_have_tasks_that_are_over_is_stuck_in_the_end(
    holder_clock: FakeClock,
) -> None:
    executor = ManualExecutor(1)
    attempt = at(executor)

    assert not executor.is_stuck()
    attempt.is_over = True
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
        attempt = at(executor)
        attempt.is_over = True
        assert not executor.is_stuck()
        holder_clock.now += 20
        assert not executor.is_stuck()
        executor.end(attempt, 20.0)


def test_an_executor_whose_tasks_all_wait_is_not_stuck(holder_clock: FakeClock) -> None:
    executor = ManualExecutor(1)
    executor.come(Attempt(interval=0.0, is_over=True))

    assert not executor.is_stuck()
    holder_clock.advance(1)
    assert not executor.is_stuck()
