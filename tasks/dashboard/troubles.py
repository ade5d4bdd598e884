"""Read tasks that run long or fail, and workers that die, for the overview.

Each reading is bounded: the running tasks, the newest failures, the newest attempts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, F, Max, Subquery, Value
from django.db.models.functions import Coalesce, Left

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_rows
from leasing.functions import EPOCH, after
from tasks.dashboard.worker_rows import state_of
from tasks.diagnosis.handlers import LONG_AT_LEAST, HandlerUse, usual
from tasks.models import AttemptOutcome, Task, TaskAttempt, Worker, WorkerState
from tasks.models.worker import ProcessEnd
from tasks.querysets.recovery import LOST_WITH_WORKER, is_lost_with_worker

#: Rows of each kind that are read, and characters of an error that are shown.
READ: Final = 1_000
ERROR_SHOWN: Final = 120
#: The time whose failing attempts are compared with the successes, and the least of them.
FAILING_WITHIN: Final = timedelta(minutes=1)
FAILING_AT_LEAST: Final = 5
#: The time within which the deaths of workers are counted together, and the least of them.
DEATHS_WITHIN: Final = timedelta(minutes=10)
DEATHS_AT_LEAST: Final = 2
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class LongRun:
    """Tasks of a handler that run for much longer than it usually takes."""

    #: The id of the one that runs longest, and since when it does.
    task: int
    since: datetime
    use: HandlerUse = field(compare=False)
    count: int


@dataclass
class Failures:
    """Tasks of a handler that failed, or attempts, with one error."""

    name: str
    error: str
    #: The newest of them: its id, its queue, and its end.
    task: int
    queue: str
    at: datetime
    count: int = 0
    #: All attempts of the handler in the same time; 0 unless attempts are counted.
    attempts: int = 0


@dataclass(frozen=True)
class Deaths:
    """Workers that were replaced without having stopped."""

    workers: list[str]
    count: int
    first_at: datetime
    #: The ids and names of the tasks that most of them had begun, and how often.
    suspects: list[tuple[int, str]]
    times: int


@dataclass(frozen=True)
class Silent:
    """Workers that are late or gone, the number and the latest deadline of their tasks, and the
    number of tasks that recovery took back from them since they were seen."""

    workers: Sequence[Worker]
    held: int = 0
    until: datetime | None = None
    lost: int = 0

    @property
    def names(self) -> list[str]:
        return [worker.name for worker in self.workers]


def long_runs(now: datetime) -> list[LongRun]:
    """Return the handlers with tasks that run for long, the longest first."""

    def first() -> Any:
        running = Task.objects.home().running().unexpired()
        since = running.filter(acquired_at__lte=after(-LONG_AT_LEAST))
        return since.order_by("acquired_at", "pk").values_list("name", "pk", "acquired_at")[:READ]

    rows = query_rows((long_runs, leasing_settings.DATABASE), first)
    uses = usual({name for name, *_ in rows}, now)
    long: defaultdict[str, list[tuple[int, datetime]]] = defaultdict(list)
    for name, key, at in rows:
        if at and name in uses and uses[name].is_exceeded_by(now - at):
            long[name].append((key, at))
    return [LongRun(*tasks[0], uses[name], len(tasks)) for name, tasks in long.items()]


def failed_tasks() -> list[Failures]:
    """Return the newest failed tasks by handler and error, the latest first; without those that
    were to undo others."""

    def newest() -> Any:
        failed: Any = Task.objects.home().failed().filter(processed_at__isnull=False)
        failed = failed.exclude(compensation="")
        last = failed.order_by("-processed_at").values("processed_at")[READ - 1 : READ]
        since = Coalesce(Subquery(last), Value(EPOCH))
        return _by_error(failed.filter(processed_at__gte=since), "", "last_error", "processed_at")

    return _grouped(query_rows((failed_tasks, leasing_settings.DATABASE), newest))


def failed_compensations() -> list[Failures]:
    """Return READ of the failed tasks that were to undo others, as ``failed_tasks``."""

    def some() -> Any:
        failed: Any = Task.objects.home().failed().filter(compensation="")
        bounded = failed.filter(pk__in=failed.order_by().values("pk")[:READ])
        return _by_error(bounded, "", "last_error", "processed_at")

    return _grouped(query_rows((failed_compensations, leasing_settings.DATABASE), some))


def failing(now: datetime) -> list[Failures]:
    """Return the handlers of whose attempts in the last minute at least half failed with one
    error, the most failures first."""

    def newest() -> Any:
        attempts = _newest_attempts(after(-FAILING_WITHIN)).filter(outcome=AttemptOutcome.FAILED)
        return _by_error(attempts, "task__", "error", "ended_at")

    groups = _grouped(query_rows((failing, leasing_settings.DATABASE), newest))
    since = now - FAILING_WITHIN
    failed = Counter[str]()
    for each in groups:
        failed[each.name] += each.count
    frequent = []
    for each in groups:
        if each.count >= FAILING_AT_LEAST:
            done = Task.objects.home().succeeded().filter(processed_at__gte=since, name=each.name)
            each.attempts = failed[each.name] + done.order_by()[:READ].count()
            if 2 * each.count >= each.attempts:
                frequent.append(each)
    return sorted(frequent, key=lambda each: -each.count)


def _newest_attempts(since: Any) -> Any:
    """Return those of the newest READ attempts that ended after ``since``."""
    attempts: Any = TaskAttempt.objects.home()
    last = Subquery(attempts.order_by("-pk").values(before=F("pk") - READ)[:1])
    return attempts.filter(pk__gt=last, ended_at__gte=since)


def _by_error(rows: Any, of_task: str, error: str, ended_at: str) -> Any:
    """Return the handlers of failures and their errors, each with the latest task, its queue, the
    latest end and the number, the latest first.

    Args:
        rows: Tasks or attempts.
        of_task: The prefix of the columns of the task.
        error: The column of the error.
        ended_at: The column of the end.
    """
    alike = rows.order_by().values_list(f"{of_task}name", Left(error, ERROR_SHOWN))
    counted = alike.annotate(
        key=Max(f"{of_task}pk"), in_=Max(f"{of_task}queue"), at=Max(ended_at), count=Count("pk")
    )
    return counted.order_by("-at", "-key")


def _grouped(rows: Iterable[tuple[str, str, int, str, datetime, int]]) -> list[Failures]:
    """Return the failures of ``rows`` from ``_by_error``; errors that differ only in numbers are
    one."""
    failures: dict[tuple[str, str], Failures] = {}
    for name, text, key, queue, at, count in rows:
        line = "lost with its worker" if is_lost_with_worker(text) else text.partition("\n")[0]
        group = (name, _NUMBER.sub("0", line))
        failures.setdefault(group, Failures(name, line, key, queue, at)).count += count
    return list(failures.values())


def deaths(workers: Iterable[Worker], now: datetime) -> Deaths | None:
    """Return the recent deaths of processes that ``workers`` have replaced; None if there are fewer
    than DEATHS_AT_LEAST."""
    since = now - DEATHS_WITHIN
    ends = [
        (label, end) for label, end in _former_ends(workers) if end.at >= since and not end.is_clean
    ]
    if len(ends) < DEATHS_AT_LEAST:
        return None
    lost = _newest_attempts(since).filter(LOST_WITH_WORKER)
    by_task = lost.order_by().values_list("task", "task__name").annotate(times=Count("pk"))
    most = list(by_task.filter(times__gte=DEATHS_AT_LEAST).order_by("-times", "task")[:READ])
    times = most[0][2] if most else 0
    return Deaths(
        sorted({label for label, _ in ends}),
        len(ends),
        min(end.at for _, end in ends),
        [(key, name) for key, name, count in most if count == times],
        times,
    )


def _former_ends(workers: Iterable[Worker]) -> Iterator[tuple[str, ProcessEnd]]:
    """Yield the ends of processes that others have succeeded, each with its label."""
    for worker in workers:
        for end in worker.former_ends:
            yield worker.label, end
    for worker in replaced(workers):
        yield worker.label, worker.end


def replaced(workers: Iterable[Worker]) -> list[Worker]:
    """Return the silent ones of ``workers`` that another process of their label and host has
    succeeded. Their rows stay for a while."""
    succeeded: list[Worker] = []
    newest: set[tuple[str, str]] = set()
    for worker in sorted(workers, key=lambda each: each.pk, reverse=True):
        place = worker.label or worker.name, worker.hostname
        if place in newest and state_of(worker) != WorkerState.LIVE:
            succeeded.append(worker)
        newest.add(place)
    return succeeded


def silent(workers: Sequence[Worker]) -> Silent | None:
    """Return ``workers``, which are late or gone, with the tasks that they hold; None if there are
    no workers."""
    if not workers:
        return None
    names = [worker.name for worker in workers]
    held = Task.objects.home().running().unexpired().filter(holder__in=names).order_by()
    ends = _newest_attempts(min(worker.last_seen_at for worker in workers))
    return Silent(
        workers,
        **held.aggregate(held=Count("pk"), until=Max("expires_at")),
        lost=ends.filter(LOST_WITH_WORKER, holder__in=names).count(),
    )


def slots_by_kind(workers: Iterable[Worker]) -> Counter[str]:
    """Return the numbers of the slots of ``workers`` by their kinds."""
    return sum((Counter(worker.slots) for worker in workers), Counter())
