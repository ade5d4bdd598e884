"""Slots: at most so many tasks of one concurrency key run at a time.

A running task with a key has a slot of its own ("key:0", "key:1", ...), which ends with its
running. A claim locks its rows, then the keys of these rows (so that claims of one key come one
after the other), reads which slots are taken, and seats each task whose key has fewer running
than the task's own limit. When some found no seat it looks again, past everything whose key is
full: a backlog behind one key stands in nobody's way.

No claim waits long for another, which may be of a process that was stopped in the midst of it:
a key that stays locked is passed over. And no two tasks share a slot, for the column is unique:
where keys cannot be locked a claim may meet a slot that has just been taken, and then passes over
that task.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, models, transaction
from django.db.models import Case, Value, When

from leasing.db import joins
from leasing.db.dialects import lock, lock_names
from leasing.stores.rows import pause_shortly

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.base import TaskRows

#: Before the names of the keys that are locked.
LOCK = "leasing_tasks.slot:"
#: Tries to lock a key that another claim has, a few milliseconds each time.
TRIES = 8


def may_wait(attempts: int, max_attempts: int) -> bool:
    """Return True if a ready task may be claimed before there is a slot of the worker for it: if
    its worker dies meanwhile, that costs an attempt, and this one has others."""
    return attempts == 0 and max_attempts > 1


class Seats:
    """The room of one claim, and the slots as it finds and fills them, over all the queues it
    looks at.

    Args:
        rows: All tasks.
        room: The number of tasks that it may take.
        free: The number of them that begin at once. None: all.
    """

    def __init__(self, rows: TaskRows, room: int, free: int | None = None) -> None:
        self.room = room
        self.free = room if free is None else free
        #: True if it came past tasks that are claimed for a free slot alone.
        self.passed_over = False
        self._rows = rows._everything()
        self._taken: dict[str, set[str]] = {}
        #: Given, and perhaps not written yet.
        self._given: dict[str, set[str]] = defaultdict(set)
        #: Keys of which another claim has been seating tasks for too long.
        self._elsewhere: set[str] = set()

    def take(self, count: int) -> None:
        """Note that ``count`` tasks were claimed."""
        self.room -= count
        self.free = max(0, self.free - count)

    def look(self, keys: Iterable[str]) -> None:
        """Lock ``keys``, and read what is taken."""
        names = {LOCK + key for key in keys}
        for _ in range(TRIES):
            names -= lock_names(self._rows.db, names)
            if not names:
                break
            pause_shortly()
        self._elsewhere |= {name.removeprefix(LOCK) for name in names}
        self._taken = defaultdict(set)
        seated = self._rows.filter(slot__isnull=False)
        found: Any = seated.values_list("concurrency_key", "slot")
        for key, slot in found:
            self._taken[key].add(slot)
        for key, slots in self._given.items():
            self._taken[key] |= slots

    def seat(self, task: Task) -> bool:
        """Give ``task`` a slot, if its key has one left for it or needs none."""
        key = task.concurrency_key
        if not key:
            return True
        taken = self._taken[key]
        limit: Any = task.concurrency_limit  # which every task with a key has
        if key in self._elsewhere or len(taken) >= limit:
            return False
        task.slot = next(slot for n in range(limit) if (slot := f"{key}:{n}") not in taken)
        taken.add(task.slot)
        self._given[key].add(task.slot)
        return True

    def past_the_full(self, rows: TaskRows) -> TaskRows:
        """The ``rows`` that might find a seat."""
        by_number = defaultdict(list)
        for key, slots in self._taken.items():
            by_number[len(slots)].append(key)
        for number, keys in by_number.items():
            rows = rows.exclude(concurrency_key__in=keys, concurrency_limit__lte=number)
        return rows.exclude(concurrency_key__in=self._elsewhere)


def choose(rows: TaskRows, free: TaskRows, limit: int | None) -> dict[int, Task]:
    """Lock up to ``limit`` of ``free``, each with a slot where it needs one."""
    chosen = _locked(free, limit)
    seats = rows.seats or Seats(rows, len(chosen))
    seated: dict[int, Task] = {}
    while chosen:
        if keys := {task.concurrency_key for task in chosen.values()} - {""}:
            seats.look(keys)
        full = False
        for pk, task in chosen.items():
            if len(seated) >= seats.free and not may_wait(task.attempts, task.max_attempts):
                seats.passed_over = True
            elif seats.seat(task):
                seated[pk] = task
            else:
                full = True
        if not full:
            break
        more = seats.past_the_full(free).exclude(pk__in=list(seated))
        chosen = _locked(more, None if limit is None else limit - len(seated))
    return seated


def _locked(free: TaskRows, limit: int | None) -> dict[int, Task]:
    columns = ("holder", "grants", "grant_id", "released_at", "expires_at")
    kind = ("attempts", "max_attempts", "concurrency_key", "concurrency_limit", "slot")
    rows = free.only("pk", *columns, *kind)
    of = joins.lock_of(free.model, free.db)
    return {task.pk: task for task in lock(rows, skip_locked=True, of=of)[:limit]}


def write(
    using: str,
    grant: Callable[..., None],
    before: dict[int, Task],
    grants: dict[int, uuid.UUID],
    columns: dict[str, Any],
) -> None:
    """``grant`` those rows, with the slots they were given."""
    slots = {pk: task.slot for pk, task in before.items() if task.slot is not None}
    if not slots:
        return grant(before, grants, columns)
    chosen = [When(pk=pk, then=Value(slot)) for pk, slot in slots.items()]
    columns["slot"] = Case(*chosen, default=None, output_field=models.CharField())
    with suppress(IntegrityError), transaction.atomic(using=using):
        return grant(before, grants, columns)
    # A slot was taken meanwhile: each on its own, and that one not.
    free = {pk: task for pk, task in before.items() if pk not in slots}
    if free:
        grant(free, grants, columns)
    for pk in slots:
        with suppress(IntegrityError), transaction.atomic(using=using):
            grant({pk: before[pk]}, grants, columns)
    return None
