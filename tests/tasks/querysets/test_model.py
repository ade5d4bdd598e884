"""Tasks against a model: a dictionary and a clock. Any order of events, on any database."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from leasing.exceptions import LeaseLost
from tasks.models import Task, TaskAttempt
from tasks.sample import SLEEP
from tests.leasing.conftest import DatabaseClock

DATA = {"sleep_duration_seconds": 1}
SECONDS = (0.000001, 0.999999, 1, 5, 29.999999, 60)
ENDED = ("succeeded", "failed", "cancelled")


class Order(NamedTuple):
    """What is enqueued."""

    priority: int
    max_attempts: int
    delay: float
    key: str | None
    slot_key: str | None


#: Every combination of what decides when a task is claimed, and how often.
ORDERS = [
    Order(*each)
    for each in product((0, 1), (1, 2), (0, 0, 5), (None, None, "fence"), (None, None, "crane"))
]


@dataclass
class Row:
    """The model's knowledge of one task."""

    pk: int
    order: Order
    max_attempts: int
    scheduled_at: datetime
    has_key: bool
    status: str = "ready"
    attempts: int = 0
    holder: str | None = None
    is_asked: bool = False
    grant: uuid.UUID | None = None
    ttl: timedelta = timedelta(0)
    expires_at: datetime | None = None
    checkpoint: int | None = None
    output: int | None = None
    tokens: list[int] = field(default_factory=lambda: [0])

    @property
    def rank(self) -> tuple[int, datetime, int]:
        """Return the place in the order in which tasks are claimed."""
        return -self.order.priority, self.scheduled_at, self.pk

    def owns(self, key: str | None) -> bool:
        """Return True if it has the unique ``key``."""
        return self.has_key and self.order.key == key


class Tasks:
    """The verbs, in any order, by holders old and new."""

    def __init__(self, clock: DatabaseClock) -> None:
        self.clock = clock
        TaskAttempt._base_manager.all().delete()
        Task.objects.all().delete()
        self.rows: dict[int, Row] = {}
        #: The tasks as their holders got them, old and new.
        self.held: list[Task] = []

    # Producers

    def enqueue(self, number: int) -> None:
        for each in (number, number + len(ORDERS) // 2 + 1):  # of the other priority
            self.enqueue_one(ORDERS[each % len(ORDERS)])

    def enqueue_one(self, order: Order) -> None:
        at = self.clock.now + timedelta(seconds=order.delay)
        task = Task.objects.enqueue(
            SLEEP,
            DATA,
            priority=order.priority,
            max_attempts=order.max_attempts,
            scheduled_at=at,
            unique_key=order.key,
            concurrency_key=order.slot_key,
            concurrency_limit=1 if order.slot_key else None,
        )
        owner = next((row for row in self.rows.values() if row.owns(order.key)), None)
        assert task.is_duplicate is (owner is not None)
        if owner is not None:
            assert task.pk == owner.pk
        else:
            self.rows[task.pk] = Row(task.pk, order, order.max_attempts, at, bool(order.key))

    # Workers

    def claim(self, number: int) -> None:
        holder, limit, ttl = f"worker-{number % 2}", 1 + number % 3, (1, 30)[number % 2]
        expected = self.next_rows(limit)
        tasks = list(Task.objects.claim(holder, limit=limit, ttl=ttl))
        assert [task.pk for task in tasks] == [row.pk for row in expected]
        for task, row in zip(tasks, expected, strict=True):
            row.status, row.holder, row.grant = "running", holder, task.grant_id
            row.attempts += 1
            row.ttl = timedelta(seconds=ttl)
            row.expires_at = self.clock.now + row.ttl
            self.token_rises(row)
            self.old_holders_are_refused(task)
            self.held.append(task)

    def old_holders_are_refused(self, task: Task) -> None:
        """They come back while the next one works."""
        verbs = (
            Task.objects.heartbeat,
            Task.objects.complete,
            partial(Task.objects.fail, error="x"),
        )
        for old in (each for each in self.held if each.pk == task.pk):
            for verb in verbs:
                with pytest.raises(LeaseLost):
                    verb(copy.copy(old))

    def next_rows(self, limit: int) -> list[Row]:
        """Return the rows that are claimed next: due, in their order, one of a key at a time."""
        running = [row for row in self.rows.values() if row.status == "running"]
        taken = {row.order.slot_key for row in running}
        found: list[Row] = []
        for row in sorted(self.rows.values(), key=lambda row: row.rank):
            is_due = row.status == "ready" and row.scheduled_at <= self.clock.now
            slot_key = row.order.slot_key
            if is_due and (slot_key is None or slot_key not in taken):
                found.append(row)
                taken.add(slot_key)
        return found[:limit]

    def running(self, task: Task) -> Row | None:
        """Return the row of ``task``, if it still runs under this grant."""
        row = self.rows.get(task.pk)
        return row if row and row.status == "running" and row.grant == task.grant_id else None

    def heartbeat(self, task: Task) -> None:
        row = self.running(task)
        if row is not None and row.expires_at is not None and row.expires_at > self.clock.now:
            Task.objects.heartbeat(task)
            row.expires_at = max(row.expires_at, self.clock.now + row.ttl)
        else:
            with pytest.raises(LeaseLost):
                Task.objects.heartbeat(task)
            if row is not None:  # a holder that is late is told so, and has its task taken
                self.end_without_result(row)
                self.token_rises(row)

    def checkpoint(self, task: Task) -> None:
        state = len(self.held)
        row = self.running(task)
        if row is not None:
            Task.objects.checkpoint(task, state)
            row.checkpoint = state
        else:
            with pytest.raises(LeaseLost):
                Task.objects.checkpoint(task, state)

    def complete(self, task: Task) -> None:
        output = len(self.rows)
        row = self.running(task)
        if row is not None:
            Task.objects.complete(task, output)
            self.end(row, "succeeded")
            row.output = output
        else:
            with pytest.raises(LeaseLost):
                Task.objects.complete(task, output)

    def fail(self, task: Task) -> None:
        row = self.running(task)
        if row is not None:
            Task.objects.fail(task, "no luck")
            self.end_without_result(row)
        else:
            with pytest.raises(LeaseLost):
                Task.objects.fail(task, "no luck")

    def give_back(self, task: Task) -> None:
        row = self.running(task)
        if row is not None:
            Task.objects.give_back(task, "stopping")
            row.attempts -= 1
            self.end_without_result(row)
        else:
            with pytest.raises(LeaseLost):
                Task.objects.give_back(task, "stopping")

    def accept_cancel(self, task: Task) -> None:
        row = self.running(task)
        if row is not None:
            Task.objects.accept_cancel(task, "olga")
            self.end(row, "cancelled")
        else:
            with pytest.raises(LeaseLost):
                Task.objects.accept_cancel(task, "olga")

    def use_its_proof_with_other_keys(self, task: Task) -> None:
        for other in Task.objects.running().exclude(pk=task.pk):
            forged = copy.copy(other)
            forged.grant_id = task.grant_id
            for verb in (Task.objects.heartbeat, Task.objects.complete):
                with pytest.raises(LeaseLost):
                    verb(forged)

    def save(self, task: Task) -> None:
        if Task.objects.filter(pk=task.pk).exists():
            task.save()

    # Recovery and operators

    def recover(self, number: int = 0) -> None:
        late = [row for row in self.rows.values() if self.is_late(row)]
        assert Task.objects.recover() == len(late)
        for row in late:
            self.end_without_result(row)
            self.token_rises(row)

    def revoke(self, row: Row) -> None:
        was_running = row.status == "running"
        taken = Task.objects.filter(pk=row.pk).revoke("by the model", "olga")
        assert taken == was_running
        if taken:
            self.end_without_result(row)
            self.token_rises(row)

    def cancel(self, row: Row) -> None:
        is_new = row.status == "ready" or (row.status == "running" and not row.is_asked)
        assert Task.objects.filter(pk=row.pk).cancel("olga") == is_new
        if row.status == "ready":
            row.is_asked = True
            self.end(row, "cancelled")
        elif row.status == "running":
            row.is_asked = True

    def retry(self, row: Row) -> None:
        others = [each for each in self.rows.values() if each.owns(row.order.key)]
        fits = row.status in ("failed", "cancelled") and not others
        assert Task.objects.filter(pk=row.pk).retry("olga") == fits
        if fits:
            row.status, row.scheduled_at, row.is_asked = "ready", self.clock.now, False
            row.max_attempts = max(row.max_attempts, row.attempts + 1)
            row.has_key = row.order.key is not None

    def reschedule(self, row: Row) -> None:
        at = self.clock.now + timedelta(seconds=1)
        moved = Task.objects.filter(pk=row.pk).reschedule(scheduled_at=at)
        assert moved == (row.status == "ready")
        if moved:
            row.scheduled_at = at

    def discard(self, row: Row) -> None:
        assert Task.objects.filter(pk=row.pk).discard() == (row.status in ENDED)
        if row.status in ENDED:
            del self.rows[row.pk]

    # Time

    def lose_all_holders(self, number: int) -> None:
        """No heartbeat comes any more; what they had is recovered and waits its pause."""
        ends = [row.expires_at for row in self.rows.values() if row.status == "running"]
        self.clock.now = max([self.clock.now, *(each for each in ends if each is not None)])
        self.recover()
        starts = [row.scheduled_at for row in self.rows.values() if row.status == "ready"]
        self.clock.now = max([self.clock.now, *starts])

    def wait(self, number: int) -> None:
        self.clock.advance(SECONDS[number % len(SECONDS)])

    def wait_for_the_next_expiry(self, number: int) -> None:
        """Move the clock to exactly that moment."""
        ends = [row.expires_at for row in self.rows.values() if row.status == "running"]
        ahead = [each for each in ends if each is not None and each > self.clock.now]
        self.clock.now = min(ahead, default=self.clock.now)

    # What the model does

    def is_late(self, row: Row) -> bool:
        return (
            row.status == "running"
            and row.expires_at is not None
            and row.expires_at <= self.clock.now
        )

    def end(self, row: Row, status: str) -> None:
        row.status, row.has_key = status, False

    def end_without_result(self, row: Row) -> None:
        """End an attempt without a result. The pause is drawn: the database says how long it is."""
        if row.is_asked:
            self.end(row, "cancelled")
        elif row.attempts >= row.max_attempts:
            self.end(row, "failed")
        else:
            row.status = "ready"
            row.scheduled_at = Task.objects.get(pk=row.pk).scheduled_at

    def token_rises(self, row: Row) -> None:
        token = Task.objects.get(pk=row.pk).fencing_token
        assert token > row.tokens[-1]
        row.tokens.append(token)

    # What always holds

    def compare(self) -> None:
        """The rows are as the model has them."""
        rows = {task.pk: task for task in Task.objects.all()}
        assert rows.keys() == self.rows.keys()
        for pk, model in self.rows.items():
            row = rows[pk]
            assert (row.status, row.attempts) == (model.status, model.attempts)
            assert row.max_attempts == model.max_attempts
            assert row.scheduled_at == model.scheduled_at
            assert row.fencing_token == model.tokens[-1]
            assert (row.grant_id, row.holder or None) == (model.grant, model.holder)
            assert row.unique_key == (model.order.key if model.has_key else None)
            is_seated = model.status == "running" and model.order.slot_key is not None
            assert (row.slot is not None) == is_seated
            assert (row.checkpoint, row.task_output) == (model.checkpoint, model.output)
            if model.status == "running":
                assert row.expires_at == model.expires_at


#: Verbs with what they are done to: by their number, each as often as it is named.
ON_NOTHING: list[Callable[[Tasks, int], None]] = [
    *(Tasks.enqueue, Tasks.enqueue, Tasks.enqueue, Tasks.claim, Tasks.claim, Tasks.claim),
    *(Tasks.recover, Tasks.wait, Tasks.wait_for_the_next_expiry, Tasks.lose_all_holders),
]
#: The latest first.
ON_HELD: list[Callable[[Tasks, Task], None]] = [
    *(Tasks.heartbeat, Tasks.checkpoint, Tasks.complete, Tasks.fail, Tasks.give_back),
    *(Tasks.accept_cancel, Tasks.use_its_proof_with_other_keys, Tasks.save),
]
#: Those that have not ended first.
ON_ROWS: list[Callable[[Tasks, Row], None]] = [
    *(Tasks.revoke, Tasks.cancel, Tasks.cancel, Tasks.retry, Tasks.reschedule, Tasks.discard),
]
VERBS = [*ON_NOTHING, *ON_HELD, *ON_ROWS]
# A machine of hypothesis with as many rules claims one task an example.
STEPS = st.tuples(st.sampled_from(range(len(VERBS))), st.sampled_from(range(len(ORDERS))))


def step(tasks: Tasks, verb: int, number: int) -> None:
    if verb < len(ON_NOTHING):
        ON_NOTHING[verb](tasks, number)
    elif (verb := verb - len(ON_NOTHING)) < len(ON_HELD):
        if tasks.held:
            ON_HELD[verb](tasks, tasks.held[-1 - (number // 3) % len(tasks.held)])
    elif tasks.rows:
        rows = sorted(tasks.rows.values(), key=lambda row: (row.status in ENDED, row.pk))
        ON_ROWS[verb - len(ON_HELD)](tasks, rows[number % len(rows)])


@pytest.mark.django_db
def test_tasks_behave_as_their_model(database_clock: DatabaseClock) -> None:
    @settings(
        max_examples=12,
        phases=[Phase.generate],  # to shrink a failure takes minutes: add Phase.shrink
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(plan=st.lists(STEPS, min_size=30, max_size=30))
    def behave(plan: list[tuple[int, int]]) -> None:
        tasks = Tasks(database_clock)
        for verb, number in plan:
            step(tasks, verb, number)
            tasks.compare()

    behave()
