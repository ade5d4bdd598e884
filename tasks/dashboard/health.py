"""The state of the site in one sentence, and the list of issues that need somebody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone

from leasing.db.row_locks import RowLock
from leasing.diagnosis.base import SEVERITIES
from leasing.functions import EPOCH
from leasing.humanize import TIME, Moment, Sentence, in_a_row, plural, span
from leasing.web.counts import Capped
from tasks.dashboard.queue_rows import QueueLine
from tasks.dashboard.schedule_status import ScheduleStatus
from tasks.dashboard.troubles import Deaths, Failures, LongRun, Silent, slots_by_kind
from tasks.dashboard.worker_rows import if_frozen
from tasks.diagnosis.reasons import WAITS, Reason
from tasks.diagnosis.slots import KINDS
from tasks.diagnosis.waiting import missing_handler
from tasks.maintenance.invariants import Unknown
from tasks.models import Queue, Schedule

#: For how long a desired state may go unacknowledged before somebody is called.
PATIENCE = timedelta(seconds=10)

#: More workers, or more paused schedules, than this are counted, not named.
NAMED = 3

#: The time for which a failure is fresh; older ones come after what is paused.
FRESH = timedelta(hours=1)

#: The time that a task may be due, in a queue that is served, before it is reported as a fault, and
#: not, after WAITS, as a fact: no queue has limits of its own.
WAITS_LONG = timedelta(minutes=5)


class Place(NamedTuple):
    """The page on which a need is met: a view, the text of the link to it, its query, and the key
    of the row that it shows; None: it shows a list."""

    view: str
    link: str
    query: str = ""
    key: int | str | None = None

    @property
    def address(self) -> str:
        """The URL."""
        return reverse(self.view, args=[self.key] if self.key else []) + self.query


GENERATOR: Final = Place("leasing_tasks:generator", "Generator")
QUEUES: Final = Place("leasing_tasks:queues", "Queues")
SCHEDULES: Final = Place("leasing_tasks:schedules", "Schedules")
WORKERS: Final = Place("leasing_tasks:workers", "Workers")


#: The pages of the runbook, by the codes of needs.
RUNBOOK: Final[Mapping[str, str]] = {
    **dict.fromkeys(("row_locked", "stuck", "no_recoverer", "no_worker"), "worker-gone"),
    **dict.fromkeys(("nobody_works", "unserved", "workers_die", "gone", "late"), "worker-gone"),
    **dict.fromkeys(("unknown_task", "paused", "waits_long", "running_long"), "stuck-queue"),
    **dict.fromkeys(("failing", "failed"), "failed-tasks"),
    **dict.fromkeys(
        ("paused_schedule", "paused_schedules", "overdue_schedule"), "schedules-overdue"
    ),
    "unpublished": "relay-away",
    "undo_failed": "compensation-failed",
    "lease_wanted": "forced-release",
    "unread": "pages-503",
}


@dataclass(frozen=True)
class Figures:
    """The figures of the overview, all read at one time; None is a figure that could not be
    read."""

    ready: Capped | None = None
    ready_by_queue: Mapping[str, Capped] = field(default_factory=dict)
    scheduled: Capped | None = None
    running: Capped | None = None
    stuck: Capped | None = None
    failed: Capped | None = None
    #: Stuck for longer than recovery takes.
    overdue: Capped | None = None
    #: The ids of late tasks whose rows a session has locked, by its lock.
    locks: dict[RowLock, list[int]] = field(default_factory=dict)
    #: The newest failed tasks by handler and error, and the attempts that fail in a row.
    failures: list[Failures] = field(default_factory=list)
    failing: list[Failures] = field(default_factory=list)
    #: The failed ones among those that were to undo others.
    undoing: list[Failures] = field(default_factory=list)
    #: Tasks that run for much longer than usual, and workers that die again and again.
    long_runs: list[LongRun] = field(default_factory=list)
    deaths: Deaths | None = None
    #: The database's clock.
    now: datetime = field(default=EPOCH, compare=False)
    #: Named leases that somebody waits for: the id, a sentence that names the waiter and the
    #: holder, and the ids and names of the tasks that the waiter runs.
    awaited_leases: list[tuple[str, Sentence, list[tuple[int, str]]]] = field(default_factory=list)
    #: Why tasks wait that have been due for longer than WAITS, the longest first.
    reasons: list[Reason] = field(default_factory=list)
    #: The task that has waited longest in a queue that is not paused: since when it has been due,
    #: and its queue.
    oldest: tuple[datetime, str] | None = field(default=None, compare=False)
    #: Paused queues, and queues with waiting tasks that no worker serves.
    paused: list[QueueLine] = field(default_factory=list)
    unserved: list[QueueLine] = field(default_factory=list)
    #: Queues with waiting tasks that only Celery workers serve, while no relay publishes them.
    unpublished: list[QueueLine] = field(default_factory=list)
    #: Waiting tasks that no worker of their queue has a handler for, by name. If more wait than are
    #: counted one by one, only those that workers have given back.
    unknown: dict[str, Unknown] = field(default_factory=dict)
    is_deep: bool = False
    #: Workers that were seen lately, and the number of those that run recovery.
    workers: int = 0
    sweepers: int = 0
    #: Workers that went without signing off, and those whose heartbeat is overdue.
    gone: Silent | None = None
    late: Silent | None = None
    #: The slots of all workers, with those that are late or gone.
    slots: Counter[str] = field(default_factory=Counter)
    #: Schedules whose due time has passed and that nobody has served.
    overdue_schedules: Capped | None = None
    #: Schedules that were paused, the latest first, and the number of those that are not named.
    paused_schedules: list[tuple[Schedule, ScheduleStatus]] = field(default_factory=list)
    more_paused_schedules: Capped | None = None
    #: The time for which the generator was to run without running, or to stop without an
    #: acknowledgement.
    start_unheard: timedelta | None = field(default=None, compare=False)
    stop_unheard: timedelta | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Need:
    """An issue that needs somebody: the fault, its consequence, and the page to look at.

    ``code`` names it for programs and tests, independent of its headline.
    """

    code: str
    severity: str
    headline: str
    detail: str
    place: Place
    #: Another place to go to: the page of a queue to pause.
    also: Place | None = None

    @property
    def runbook(self) -> Place | None:
        """Return the page of the runbook, where one exists."""
        page = RUNBOOK.get(self.code)
        return Place("leasing_tasks:runbook_page", "Runbook", key=page) if page else None


@dataclass(frozen=True)
class Assessment:
    """The state of the site in one sentence, and the issues."""

    severity: str
    sentence: str
    needs: list[Need] = field(default_factory=list)


def assess(figures: Figures, unread: Sequence[str] = ()) -> Assessment:
    """Judge ``figures``; the gravest need comes first. ``unread`` names the parts that could not
    be read, which nobody can call well."""
    issues = [
        *_unread(unread),
        *_stuck(figures),
        *_workers(figures, unread),
        *_running(figures),
        *_failed(figures),
        *_paused(figures),
        *_waiting(figures),
        *_overdue(figures),
    ]
    needs = sorted(issues, key=lambda each: -SEVERITIES.index(each.severity))
    if not needs:
        return Assessment("ok", f"No issues. {_at_work(figures)}")
    sentence = f"{plural(len(needs), 'issue needs', 'issues need')} attention."
    return Assessment(needs[0].severity, sentence, needs)


def _unread(parts: Sequence[str]) -> Iterator[Need]:
    if parts:
        yield Need(
            "unread",
            "warning",
            f"Could not read: {in_a_row(parts)}.",
            "These parts are missing here and may hide issues. The log of the web process says "
            "why.",
            Place("leasing_tasks:overview", "Try again"),
        )


def _stuck(figures: Figures) -> Iterator[Need]:
    for lock, keys in islice(figures.locks.items(), NAMED):
        rows = f"The rows of {len(keys)} tasks are locked by "
        if len(keys) == 1:
            rows = f"The row of task:{keys[0]} is locked by "
        yield Need(
            "row_locked",
            "critical",
            Sentence(figures.now, rows, *lock.parts, "."),
            f"Neither renewal nor recovery can proceed until that transaction ends. {lock.remedy}",
            _page_of_task(keys[0]),
        )
    # Tasks that the next sweep finds are no news, as long as a worker sweeps.
    code, stuck = "stuck", figures.overdue
    heals = "Recovery is late: the page of each task says what is in the way."
    if not figures.sweepers:
        code, stuck = "no_recoverer", figures.stuck
        heals = (
            "This will not recover automatically: no running worker recovers tasks. Start one: "
            "manage.py run_worker."
        )
    if stuck and stuck.value > sum(map(len, figures.locks.values())):
        headline = f"{_count(stuck, 'task is', 'tasks are')} stuck: lease expired, or no progress."
        yield Need(code, "critical", headline, heals, Place("leasing_tasks:stuck", "Stuck tasks"))


def _workers(figures: Figures, unread: Sequence[str]) -> Iterator[Need]:
    if not (figures.workers or "workers" in unread or _held_remotely(figures)):
        code, severity = "no_worker", "critical"
        headline = f"No workers are running; {_waiting_tasks(figures.ready or Capped(0))}."
        detail = (
            "Tasks wait until one is started: manage.py run_worker. Remote workers are seen only "
            "while they hold tasks."
        )
        if not figures.running and not _is_due(figures):
            code, severity = "nobody_works", "info"
            headline = "No workers are running. No tasks are waiting for one."
            detail = "Start a worker: manage.py run_worker."
        yield Need(code, severity, headline, detail, WORKERS)
    for line in figures.unserved if figures.workers else []:
        yield Need(
            "unserved",
            "critical",
            f"No worker serves the queue {line.name}; {_waiting_tasks(line.ready)}.",
            "The running workers serve other queues. Start one for this queue: "
            f"manage.py run_worker --queue {line.name}.",
            QUEUES,
        )
    for line in figures.unpublished:
        yield Need(
            "unpublished",
            "critical",
            f"No relay publishes the queue {line.name}; {_waiting_tasks(line.ready)}.",
            "Only Celery workers serve it, and no relay was seen recently. Start one: "
            "manage.py run_relay.",
            WORKERS,
        )
    if figures.unknown:
        yield _unknown(figures)
    if figures.deaths:
        yield _dying(figures.deaths, figures.now)
    if figures.gone:
        yield _gone(figures.gone, figures)
    elif figures.late:
        yield _late(figures.late, figures)


def _unknown(figures: Figures) -> Need:
    unknown = figures.unknown
    count = Capped(sum(each.count for each in unknown.values()), more=figures.is_deep)
    tasks = _count(count, "task waits", "tasks wait")
    name, more = min(unknown), len(unknown) - 1
    others = f" and {plural(more, 'other name')}" if more else ""
    return Need(
        "unknown_task",
        "critical",
        f"{tasks} for a handler that no worker has: {name}{others}.",
        missing_handler(name, are_older=unknown[name].are_older),
        _tasks_with("These tasks", name=name),
    )


def _dying(deaths: Deaths, now: datetime) -> Need:
    were = "was" if len(deaths.workers) == 1 else "were"
    replaced = f"{_named(deaths.workers)} {were} replaced {deaths.count} times in "
    lasted = Moment(deaths.first_at, lasts=True)
    headline = Sentence(now, replaced, lasted, " without having stopped.")
    place, detail = WORKERS, "No task was running each time: see how they ended, on their pages."
    if deaths.suspects:
        place = _page_of_task(deaths.suspects[0][0])
        often = "each time" if deaths.times >= deaths.count else f"{deaths.times} times"
        tasks = ", ".join(f"task:{key} {name}" for key, name in deaths.suspects[:NAMED])
        which = "It" if len(deaths.suspects) == 1 else "One of them"
        detail = (
            f"Running {often}: {tasks}. {which} may be the cause: cancel it, or fix its handler."
        )
    return Need("workers_die", "critical", headline, detail, place)


def _gone(gone: Silent, figures: Figures) -> Need:
    its = "its" if len(gone.workers) == 1 else "their"
    recovery = f"Other workers take over {its} tasks when the leases expire."
    if not figures.sweepers:
        recovery = f"No running worker recovers {its} tasks. Start one: manage.py run_worker."
    return Need(
        "gone",
        "warning",
        f"{_named(gone.names)} stopped sending heartbeats without shutting down.",
        f"{recovery} {_frozen(gone, figures)}",
        Place("leasing_tasks:workers", "Gone workers", "?state=gone"),
    )


def _late(late: Silent, figures: Figures) -> Need:
    are, hold = ("is", "holds") if len(late.workers) == 1 else ("are", "hold")
    headline = f"{_named(late.names)} {are} late"
    if late.until:
        held = plural(late.held, "task that stands still", "tasks that stand still")
        until = timezone.localtime(late.until).strftime(TIME)
        headline += f" and {hold} {held}, until {until} at most"
    if late.lost:
        headline += f"; {plural(late.lost, 'task was', 'tasks were')} taken back"
    severity = "warning" if late.lost or late.held and figures.ready else "info"
    detail = f"A heartbeat is overdue. {_frozen(late, figures)}"
    return Need("late", severity, f"{headline}.", detail, WORKERS)


def _frozen(silent: Silent, figures: Figures) -> str:
    slots = slots_by_kind(silent.workers)
    kinds = [
        f"{count:,} of {plural(figures.slots[kind], *KINDS[kind][:2])}"
        for kind, count in slots.items()
    ]
    are = "is" if slots.total() == 1 else "are"
    missing = f"{in_a_row(kinds)} {are} missing. " if kinds else ""
    if len(silent.workers) > NAMED:
        return f"{missing}Processes that still exist are frozen: end them."
    return missing + if_frozen(silent.workers)


def _running(figures: Figures) -> Iterator[Need]:
    for each in figures.failing[:NAMED]:
        yield Need(
            "failing",
            "warning",
            f"{each.count} of {each.attempts} attempts of {each.name} in the last minute failed "
            "with the same error.",
            f"{each.error} · Retries continue, and each of them uses up an attempt. To save "
            f"attempts, pause the queue {each.queue}: none of its tasks starts then, of any "
            f"handler{_waiting_in(each.queue, figures)}.",
            _page_of_task(each.task),
            also=Place("leasing_tasks:queues", f"Pause the queue {each.queue}"),
        )
    for run in figures.long_runs[:NAMED]:
        more, name = run.count - 1, run.use.name
        one, many = f"more task of {name} runs", f"more tasks of {name} run"
        others = f" {plural(more, one, many)} long too." if more else ""
        task = f"task:{run.task} has been running for "
        yield Need(
            "running_long",
            "warning",
            Sentence(figures.now, task, Moment(run.since, lasts=True), f"; {run.use.usually}."),
            f"It ends when its handler returns. If that hangs, cancel it on its page.{others}",
            _page_of_task(run.task),
        )


def _paused(figures: Figures) -> Iterator[Need]:
    for line in figures.paused:
        if line.ready and (queue := line.queue) and queue.paused_at:
            headline = f"The queue {line.name} {_paused_by(queue)}; {_waiting_tasks(line.ready)}."
            stays = "Its tasks are not claimed until someone resumes it."
            detail = _since(queue, stays, figures.now)
            yield Need("paused", "warning", headline, detail, QUEUES)
    for row, status in figures.paused_schedules:
        skipped = _count(status.skipped, "due time was", "due times were")
        skipped = f"; {skipped} skipped" if status.skipped else ""
        headline = f"The schedule {row.name} {_paused_by(row)}{skipped}."
        detail = _since(row, "Its due times are skipped until someone resumes it.", figures.now)
        severity = "warning" if status.skipped else "info"
        yield Need("paused_schedule", severity, headline, detail, SCHEDULES)
    if more := figures.more_paused_schedules:
        headline = f"{_count(more, 'more schedule is', 'more schedules are')} paused."
        detail = "The list says who paused each of them, and why."
        yield Need("paused_schedules", "info", headline, detail, SCHEDULES)


def _failed(figures: Figures) -> Iterator[Need]:
    undoing = sum(each.count for each in figures.undoing)
    if first := next(iter(figures.undoing), None):
        place = _tasks_with("These tasks", state="failed", name=first.name)
        they = "Fix the cause, then retry them: until then, their tasks cannot be retried."
        if undoing == 1:
            place = _page_of_task(first.task)
            they = f"Fix the cause, then retry task:{first.task}: nothing else undoes it."
        yield Need(
            "undo_failed",
            "critical",
            f"{plural(undoing, 'compensation has', 'compensations have')} failed: what was to be "
            "undone is undone in part, or not at all.",
            Sentence(figures.now, *_errors(figures.undoing), they),
            place,
        )
    if not figures.failed or figures.failed.value <= undoing:
        return
    others = Capped(figures.failed.value - undoing, more=figures.failed.is_capped)
    stays = "A failed task stays failed until someone retries or discards it."
    is_fresh = any(figures.now - each.at < FRESH for each in figures.failures)
    have = ("other task has", "other tasks have") if undoing else ("task has", "tasks have")
    yield Need(
        "failed",
        "warning" if is_fresh else "info",
        f"{_count(others, *have)} failed.",
        Sentence(figures.now, *_errors(figures.failures), stays),
        _tasks_with("Failed tasks", state="failed"),
    )


def _errors(failures: Sequence[Failures]) -> Iterator[str | Moment]:
    """Yield the first of ``failures``, in parts of a sentence, and the number of the others."""
    for each in failures[:NAMED]:
        last = ", the last " if each.count > 1 else ", "
        error = each.error.removesuffix(".")
        yield from (f"{each.count} {each.name}: {error}{last}", Moment(each.at), " · ")
    if (more := len(failures) - NAMED) > 0:
        yield f"{plural(more, 'more error')} · "


def _waiting(figures: Figures) -> Iterator[Need]:
    detail = (
        "The waiting program goes on when the holder releases the lease or loses it: end the "
        "holder’s program, or revoke the lease on its page."
    )
    for lease_id, sentence, tasks in figures.awaited_leases:
        place = Place("leasing:detail", "Lease", key=lease_id)
        runs = ", ".join(f"task:{key} {name}" for key, name in tasks)
        what = f"It runs {runs}. {detail}" if runs else detail
        yield Need("lease_wanted", "warning", sentence, what, place)
    if figures.oldest is None or figures.now - figures.oldest[0] <= WAITS:
        return
    # Those without a handler are named apart.
    named = [each for each in figures.reasons if each.diagnosis.code != "unknown_task"]
    waits: list[tuple[timedelta, str, str, Place]] = [
        (figures.now - each.since, each.sentence, each.diagnosis.next, _in_the_way(each))
        for each in named[:NAMED]
        if figures.now - each.since > WAITS
    ]
    if not waits and not figures.unknown:
        wait, queue = figures.now - figures.oldest[0], figures.oldest[1]
        oldest = f"The oldest task in the queue {queue} has been due for {span(wait)}."
        next_ = "Workers serve the queue. The task's page says what it waits for."
        waits = [(wait, oldest, next_, QUEUES)]
    for wait, headline, next_, place in waits:
        severity = "warning" if wait > WAITS_LONG else "info"
        yield Need("waits_long", severity, headline, next_, place)


def _overdue(figures: Figures) -> Iterator[Need]:
    if count := figures.overdue_schedules:
        yield Need(
            "overdue_schedule",
            "warning",
            f"{_count(count, 'schedule is', 'schedules are')} overdue.",
            "No running worker has the handler, or enqueueing fails: see the workers' logs.",
            SCHEDULES,
        )
    if (unheard := figures.start_unheard) and unheard > PATIENCE:
        yield Need(
            "start_unheard",
            "warning",
            f"The generator was started {span(unheard)} ago but is not running.",
            "No generator process has picked it up. Start one: manage.py run_generator.",
            GENERATOR,
        )
    if (unheard := figures.stop_unheard) and unheard > PATIENCE:
        yield Need(
            "stop_unheard",
            "warning",
            f"The generator was stopped {span(unheard)} ago, but its holder has not acknowledged "
            "it.",
            "Nothing is generated in the meantime: every batch checks first.",
            GENERATOR,
        )


def _page_of_task(key: int) -> Place:
    return Place("leasing_tasks:detail", f"task:{key}", key=key)


def _tasks_with(link: str, **filters: str) -> Place:
    return Place("leasing_tasks:list", link, f"?{urlencode(filters)}")


def _in_the_way(reason: Reason) -> Place:
    """Return the page of the tasks that other tasks wait for."""
    if task := getattr(reason.diagnosis, "holder", None):
        return _page_of_task(task)
    if handler := getattr(reason.diagnosis, "handler", ""):
        return _tasks_with("Blocking tasks", state="running", name=handler)
    return _tasks_with("Ready tasks", state="ready", queue=reason.queue)


def _waiting_in(queue: str, figures: Figures) -> str:
    ready = figures.ready_by_queue.get(queue)
    return f"; {_waiting_tasks(ready)}" if ready else ""


def _at_work(figures: Figures) -> str:
    running = figures.running
    doing = _count(running, "task running", "tasks running") if running else "No tasks running"
    where = plural(figures.workers, "worker") if figures.workers else "remote workers"
    return f"{doing} on {where}, {figures.ready or 'none'} ready."


def _is_due(figures: Figures) -> bool:
    """Return True if tasks are due that a worker could claim: in queues that are not paused."""
    if figures.ready is None:
        return False
    return figures.ready.value > sum(line.ready.value for line in figures.paused)


def _held_remotely(figures: Figures) -> bool:
    """Return True if tasks are renewed: remote workers send no heartbeats of their own."""
    if figures.running is None or figures.stuck is None:
        return False
    return figures.running.value > figures.stuck.value


def _paused_by(row: Queue | Schedule) -> str:
    return f"was paused by {row.paused_by}" if row.paused_by else "is paused"


def _since(row: Queue | Schedule, stays: str, now: datetime) -> str:
    """Return since when ``row`` is paused, and why."""
    why = f" Reason: {row.reason}" if row.reason else ""
    return Sentence(now, "Paused ", Moment(row.paused_at or now), f". {stays}{why}")


def _named(workers: Sequence[str]) -> str:
    if len(workers) > NAMED:
        return f"{len(workers)} workers"
    return f"Worker{'s' * (len(workers) > 1)} {in_a_row(workers)}"


def _count(count: Capped, one: str, many: str) -> str:
    return f"1 {one}" if str(count) == "1" else f"{count} {many}"


def _waiting_tasks(count: Capped) -> str:
    return _count(count, "task is waiting", "tasks are waiting")
