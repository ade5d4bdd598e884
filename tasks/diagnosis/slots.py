"""The slots of workers by kind: their numbers, and the tasks that occupy them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leasing.humanize import plural
from tasks.models import Worker
from tasks.registry import Kind

#: The kinds in the order in which they are shown: the words for one of their slots and for several,
#: and the option that adds some.
KINDS: Final = {
    Kind.THREAD.value: ("thread", "threads", "run_worker --threads"),
    Kind.COROUTINE.value: ("coroutine", "coroutines", "run_worker --coroutines"),
    Kind.PROCESS.value: ("child process", "child processes", "run_worker --processes"),
    Worker.POOL: ("pool slot", "pool slots", "celery worker --concurrency"),
}


@dataclass(frozen=True)
class Slots:
    """The slots of one kind that a worker has."""

    kind: str
    total: int
    #: Tasks of this kind that it holds: running, or prefetched.
    held: int = 0
    #: Slots that are not free although they run no task: see ``Worker.blocked``.
    blocked: int = 0

    @property
    def running(self) -> int:
        """Return the number of slots that run a task which the worker holds."""
        return min(self.held, max(0, self.total - self.blocked))

    @property
    def prefetched(self) -> int:
        """Return the number of tasks that the worker holds and that wait for a slot."""
        return self.held - self.running

    @property
    def busy(self) -> int:
        return min(self.total, self.running + self.blocked)

    @property
    def free(self) -> int:
        return self.total - self.busy

    @property
    def words(self) -> str:
        """Return the slots in words: ``4 threads``."""
        one, many, _ = KINDS[self.kind]
        return plural(self.total, one, many)


def slots_of(worker: Worker, held: Mapping[str, int]) -> list[Slots]:
    """Return the slots of ``worker``; ``held`` is the number of its tasks of each kind."""
    return [
        Slots(kind, worker.slots[kind], held.get(kind, 0), worker.blocked.get(kind, 0))
        for kind in KINDS
        if kind in worker.slots
    ]


def in_words(slots: Sequence[Slots]) -> str:
    """Return the use of ``slots``, which are of one kind: ``3 of 4 busy, 1 of them blocked``."""
    total, busy, blocked, prefetched = (
        sum(getattr(each, name) for each in slots)
        for name in ("total", "busy", "blocked", "prefetched")
    )
    words = f"{busy:,} of {total:,} busy"
    if blocked:
        words += f", {blocked:,} of them blocked by handlers whose tasks have ended"
    return words + (f"; {plural(prefetched, 'prefetched task')}" if prefetched else "")
