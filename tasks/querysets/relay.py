"""Verbs of the relay: it reads the tasks to publish, and records that it does.

A message is a hint that carries a task's key; the row stays the truth. Each pass derives from the
row whether a message is under way: the task was published after its last claim, and after it became
due. So a relay remembers nothing between two passes, and does not miss a row whose transaction
commits late, as it would if it continued after the highest key that it has read.

At most the first CELERY_WINDOW tasks of a queue are at the broker, in the order of claims. Of a
concurrency key no more tasks are published than can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Self

from django.db.models import BooleanField, Count, ExpressionWrapper, F, Q

from leasing.db.dialects import lock
from leasing.functions import DbNow, after
from tasks.querysets.base import TaskRows, TaskStatus

#: Further readings of one pass, past tasks whose concurrency key has no slot left.
ROUNDS = 5

#: Never published, or not since its last claim, or before it was due.
NO_MESSAGE = (
    Q(published_at=None)
    | Q(published_at__lt=F("scheduled_at"))
    | Q(published_at__lte=F("acquired_at"))
)


@dataclass
class Window:
    """The ready tasks of a queue that are claimed next, up to the size of a window."""

    #: Keys of the tasks to publish, in their order.
    keys: list[int] = field(default_factory=list)
    #: Keys of the tasks whose message has been under way for too long.
    late: list[int] = field(default_factory=list)
    #: True if there are more tasks than it shows.
    is_full: bool = False


class Seen(NamedTuple):
    """The columns of a task that a relay looks at."""

    key: int
    concurrency_key: str
    #: Of a task without a key None.
    limit: Any
    lacks_message: bool | None
    is_late: bool | None


class RelayVerbs(TaskRows):
    """The verbs of a relay: it reads what to publish, and records that it was."""

    def unpublished(self) -> Self:
        """Return the tasks that a worker could claim now, and that no message announces."""
        return self.ready().filter(NO_MESSAGE)

    def window(self, queue: str, size: int, patience: float) -> Window:
        """Return which of the first ``size`` tasks of ``queue`` to publish, and whose message is
        late."""
        rows = self.home()
        found, passed = Window(), set[str]()
        late = Q(published_at__lte=after(-timedelta(seconds=patience)))
        for _ in range(ROUNDS):
            looked: Any = rows.exclude(concurrency_key__in=passed).to_claim_next(
                queue,
                size,
                "concurrency_key",
                "concurrency_limit",
                ExpressionWrapper(NO_MESSAGE, output_field=BooleanField()),
                ExpressionWrapper(late, output_field=BooleanField()),
            )
            first = [Seen(*row) for _, _, *row in looked]
            found.is_full = len(first) == size
            full = _choose(rows, first, found)
            if not (full and found.is_full):
                break
            passed |= full
        return found

    def mark_published(self, keys: Sequence[int], patience: float) -> list[int]:
        """Record that messages for ``keys`` are about to be sent, within the caller's transaction,
        which proves its term. Returns the recorded ones, in their order."""
        late = Q(published_at__lte=after(-timedelta(seconds=patience)))
        due = self.home().filter(pk__in=keys).ready().filter(NO_MESSAGE | late)
        locked = set(lock(due.order_by("pk"), skip_locked=True).values_list("pk", flat=True))
        due.filter(pk__in=locked).update(published_at=DbNow())
        return [key for key in keys if key in locked]

    def unpublish(self, keys: Sequence[int]) -> int:
        """Record that no message for ``keys`` is under way: it was not sent, or it arrived while
        the task could not be claimed. Returns how many of them are still to be claimed."""
        waiting = self.home().filter(pk__in=keys, status=TaskStatus.READY)
        return waiting.update(published_at=None)


def _choose(rows: TaskRows, first: Sequence[Seen], found: Window) -> set[str]:
    """Add to ``found`` what is to be published of ``first``. Returns the keys that have no
    room for all of theirs."""
    known = {*found.keys, *found.late}
    with_message = [row for row in first if row.key in known or not row.lacks_message]
    under_way = Counter(row.concurrency_key for row in with_message)
    under_way += _running_by_key(rows, {row.concurrency_key for row in first} - {""})
    full: set[str] = set()
    for row in first:
        name = row.concurrency_key
        if row.key in known:
            continue
        if not row.lacks_message:
            if row.is_late:
                found.late.append(row.key)
        elif name and under_way[name] >= row.limit:
            full.add(name)
        else:
            under_way[name] += 1
            found.keys.append(row.key)
    return full


def _running_by_key(rows: TaskRows, keys: set[str]) -> Counter[str]:
    if not keys:
        return Counter()
    running = rows._everything().filter(slot__isnull=False, concurrency_key__in=keys)
    counted: Any = running.values_list("concurrency_key").annotate(Count("pk")).order_by()
    return Counter(dict(counted))
