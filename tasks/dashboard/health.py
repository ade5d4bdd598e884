"""Is all well? One sentence, and the list of what needs somebody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.utils import timezone

from leasing.diagnosis.base import SEVERITIES
from leasing.functions import EPOCH
from leasing.humanize import TIME, Moment, Sentence, plural, span
from leasing.web.counts import Capped
from tasks.dashboard.queue_rows import QueueLine
from tasks.dashboard.schedule_status import ScheduleStatus
from tasks.dashboard.troubles import Deaths, Failures, LongRun, Silent
from tasks.diagnosis.reasons import WAITS, Reason
from tasks.diagnosis.slots import KINDS
from tasks.diagnosis.waiting import missing_handler
from tasks.maintenance.invariants import Unknown
from tasks.models import Schedule

#: For how long a desired state may go unacknowledged before somebody is called.
PATIENCE = timedelta(seconds=10)

#: More workers, or more paused schedules, than this are counted, not named.
NAMED = 3

#: The time within which recovery must find a task; later it is reported as stuck.
SWEPT_WITHIN = timedelta(seconds=5)

#: The time for which a failure is fresh; older ones come after what is paused.
FRESH = timedelta(hours=1)

#: The time that a task may be due, in a queue that is served, before it is reported as a fault, and
#: not, after WAITS, as a fact: no queue has limits of its own.
WAITS_LONG = timedelta(minutes=5)


@dataclass(frozen=True)
class Figures:
    """The figures of the overview, all read at one time; None is a figure that could not be
    read."""

    ready: Capped | None = None
    scheduled: Capped | None = None
    running: Capped | None = None
    stuck: Capped | None = None
    failed: Capped | None = None
    #: Stuck for longer than recovery takes.
    overdue: Capped | None = None
    #: Of late tasks whose rows a session has locked: their ids, the session, and how to end it.
    locks: list[tuple[list[int], Sentence, str]] = field(default_factory=list)
    #: The newest failed tasks by handler and error, and the attempts that fail in a row.
    failures: list[Failures] = field(default_factory=list)
    failing: list[Failures] = field(default_factory=list)
    #: Tasks that run for much longer than usual, and workers that die again and again.
    long_runs: list[LongRun] = field(default_factory=list)
    deaths: Deaths | None = None
    #: The database's clock.
    now: datetime = field(default=EPOCH, compare=False)
    #: Named leases that somebody waits for: the id, and who waits for whom.
    wanted: list[tuple[str, Sentence]] = field(default_factory=list)
    #: Why tasks wait that have been due for longer than WAITS, the longest first.
    reasons: list[Reason] = field(default_factory=list)
    #: The time for which the longest-waiting task has been due, where nothing is paused.
    longest_wait: timedelta | None = field(default=None, compare=False)
    #: The queue of that task.
    longest_wait_in: str = ""
    #: Queues that stand still, and queues that nobody serves although something waits there.
    paused: list[QueueLine] = field(default_factory=list)
    unserved: list[QueueLine] = field(default_factory=list)
    #: Queues where something waits that only Celery workers serve, while no relay tells them.
    unpublished: list[QueueLine] = field(default_factory=list)
    #: Waiting tasks that no worker of their queue has a handler for, by name.
    unknown: dict[str, Unknown] = field(default_factory=dict)
    #: Workers that were seen lately, and how many of them run recovery.
    workers: int = 0
    sweepers: int = 0
    #: Workers that went without signing off, and those whose sign of life is missing.
    gone: Silent | None = None
    late: Silent | None = None
    #: The slots of all workers, with those that are late or gone.
    slots: Counter[str] = field(default_factory=Counter)
    #: Schedules whose moment has passed without anybody serving it.
    overdue_schedules: Capped | None = None
    #: Schedules that were paused, the latest first, and how many more than are named.
    paused_schedules: list[tuple[Schedule, ScheduleStatus]] = field(default_factory=list)
    more_paused_schedules: Capped | None = None
    #: The time for which the generator was to run without running, or to stop without an
    #: acknowledgement.
    start_unheard: timedelta | None = field(default=None, compare=False)
    stop_unheard: timedelta | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Need:
    """Something that needs somebody: what is wrong, what follows, and where to look.

    ``code`` names it for programs and tests, independent of its headline.
    """

    code: str
    severity: str
    headline: str
    detail: str
    view: str
    link: str
    query: str = ""
    #: The key of the row that ``view`` shows; None: it shows a list.
    key: int | str | None = None
    #: A queue that one may want to pause.
    queue: str = ""


@dataclass(frozen=True)
class Health:
    """The state of everything in one sentence, and why."""

    severity: str
    sentence: str
    needs: list[Need] = field(default_factory=list)


def assess(figures: Figures, unread: Sequence[str] = ()) -> Health:
    """Judge ``figures``; the gravest need comes first. ``unread`` names the parts that could not
    be read, which nobody can call well."""
    found: list[Need | None] = [
        _unread(unread),
        *[_locked(*each) for each in figures.locks[:NAMED]],
        _stuck(figures),
        _workers(figures, unread),
        *[_unserved(line) for line in figures.unserved if figures.workers],
        *[_unpublished(line) for line in figures.unpublished],
        _unknown(figures),
        _deaths(figures),
        _vanished(figures),
        *[_failing(each) for each in figures.failing[:NAMED]],
        *[_long_run(each, figures.now) for each in figures.long_runs[:NAMED]],
        *[_paused(line) for line in figures.paused if line.ready],
        *[_paused_schedule(*each) for each in figures.paused_schedules],
        _more_paused(figures),
        _failed(figures),
        *[_wanted(*each) for each in figures.wanted],
        *_waiting(figures),
        _schedules(figures),
        _generator(figures),
    ]
    needs = sorted(
        [need for need in found if need is not None],
        key=lambda need: -SEVERITIES.index(need.severity),
    )
    if not needs:
        return Health("ok", f"No issues. {_at_work(figures)}")
    count = len(needs)
    sentence = "1 issue needs attention." if count == 1 else f"{count} issues need attention."
    return Health(needs[0].severity, sentence, needs)


def _unread(parts: Sequence[str]) -> Need | None:
    if not parts:
        return None
    return Need(
        "unread",
        "warning",
        f"Could not read: {_and(parts)}.",
        "These parts are missing here and may hide issues. The log of the web process says why.",
        "leasing_tasks:overview",
        "Try again",
    )


def _unserved(line: QueueLine) -> Need:
    return Need(
        "unserved",
        "critical",
        f"No worker serves the queue {line.name}; {_waiting_tasks(line.ready)}.",
        "The running workers serve other queues. Start one for this queue: "
        f"manage.py run_worker --queue {line.name}.",
        "leasing_tasks:queues",
        "Queues",
    )


def _unpublished(line: QueueLine) -> Need:
    return Need(
        "unpublished",
        "critical",
        f"No relay publishes the queue {line.name}; {_waiting_tasks(line.ready)}.",
        "Only Celery workers serve it, and no relay was seen recently. Start one: "
        "manage.py run_relay.",
        "leasing_tasks:workers",
        "Workers",
    )


def _unknown(figures: Figures) -> Need | None:
    if not figures.unknown:
        return None
    count = sum(unknown.count for unknown in figures.unknown.values())
    tasks = _tasks(Capped(count), "waits", "wait")
    name = min(figures.unknown)
    more = len(figures.unknown) - 1
    others = f" and {plural(more, 'other name')}" if more else ""
    return Need(
        "unknown_task",
        "critical",
        f"{tasks} for a handler that no worker has: {name}{others}.",
        missing_handler(name, are_older=figures.unknown[name].are_older),
        "leasing_tasks:list",
        "These tasks",
        f"?{urlencode({'name': name})}",
    )


def _vanished(figures: Figures) -> Need | None:
    if gone := figures.gone:
        its = "its" if len(gone.names) == 1 else "their"
        detail = f"Other workers take over {its} tasks when the leases expire."
        if not figures.sweepers:
            detail = f"No running worker recovers {its} tasks. Start one: manage.py run_worker."
        return Need(
            "gone",
            "warning",
            f"{_named(gone.names)} stopped sending heartbeats without shutting down.",
            f"{detail} {_frozen(gone, figures)}",
            "leasing_tasks:workers",
            "Gone workers",
            "?state=gone",
        )
    if late := figures.late:
        one = len(late.names) == 1
        headline = f"{_named(late.names)} {'is' if one else 'are'} late"
        if late.until:
            held = plural(late.held, "task that stands still", "tasks that stand still")
            until = timezone.localtime(late.until).strftime(TIME)
            headline += f" and {'holds' if one else 'hold'} {held}, until {until} at most"
        return Need(
            "late",
            "warning" if late.held and figures.ready else "info",
            f"{headline}.",
            f"A heartbeat is overdue. {_frozen(late, figures)}",
            "leasing_tasks:workers",
            "Workers",
        )
    return None


def _frozen(silent: Silent, figures: Figures) -> str:
    kinds = [
        f"{count:,} of {plural(figures.slots[kind], *KINDS[kind][:2])}"
        for kind, count in silent.slots.items()
    ]
    missing = f"{_and(kinds)} are missing." if kinds else ""
    if len(silent.names) > NAMED:
        return f"{missing} Processes that still exist are frozen: end them."
    exists = f"{_and(silent.processes)} still exist{'s' * (len(silent.names) == 1)}"
    return (
        f"{missing} If {exists}, it is frozen: end it, a supervisor restarts only what has ended."
    )


def _deaths(figures: Figures) -> Need | None:
    deaths, now = figures.deaths, figures.now
    if deaths is None:
        return None
    were = "was" if len(deaths.workers) == 1 else "were"
    headline = Sentence(
        now,
        f"{_named(deaths.workers)} {were} replaced {deaths.count} times in ",
        Moment(deaths.first_at, lasts=True),
        " without having stopped.",
    )
    if not deaths.suspects:
        detail = "No task was running each time: see how they ended, on their pages."
        link = ("leasing_tasks:workers", "Workers")
        return Need("workers_die", "critical", headline, detail, *link)
    often = "each time" if deaths.times >= deaths.count else f"{deaths.times} times"
    tasks = ", ".join(f"task:{key} {name}" for key, name in deaths.suspects[:NAMED])
    key, _ = deaths.suspects[0]
    detail = f"Running {often}: {tasks}. It may be the cause: cancel it, or mend its handler."
    link = ("leasing_tasks:detail", f"task:{key}")
    return Need("workers_die", "critical", headline, detail, *link, key=key)


def _failing(found: Failures) -> Need:
    return Need(
        "failing",
        "warning",
        f"{found.count} of {found.attempts} attempts of {found.name} in the last minute failed "
        "with the same error.",
        f"{found.error} · Retries go on and spend attempts.",
        "leasing_tasks:detail",
        f"task:{found.task}",
        key=found.task,
        queue=found.queue,
    )


def _long_run(run: LongRun, now: datetime) -> Need:
    more = run.count - 1
    others = f" {plural(more, 'more task')} of {run.use.name} run for long." if more else ""
    ran = f"task:{run.task} has been running for ", Moment(run.since, lasts=True)
    return Need(
        "running_long",
        "warning",
        Sentence(now, *ran, f"; {run.use.usually}."),
        f"It ends when its handler returns. If that hangs, cancel the task.{others}",
        "leasing_tasks:detail",
        f"task:{run.task}",
        key=run.task,
    )


def _paused(line: QueueLine) -> Need:
    queue = line.queue
    by = f" by {queue.paused_by}" if queue and queue.paused_by else ""
    why = f" Reason: {queue.reason}" if queue and queue.reason else ""
    return Need(
        "paused",
        "info",
        f"The queue {line.name} is paused{by}; {_waiting_tasks(line.ready)}.",
        f"Its tasks are not claimed until someone resumes it.{why}",
        "leasing_tasks:queues",
        "Queues",
    )


def _paused_schedule(schedule: Schedule, status: ScheduleStatus) -> Need:
    by = f" by {schedule.paused_by}" if schedule.paused_by else ""
    count = status.skipped
    were = "1 due time was" if count.value == 1 else f"{count} due times were"
    return Need(
        "paused_schedule",
        "info",
        f"The schedule {schedule.name} is paused{by}{f'; {were} skipped' if count else ''}.",
        status.why,
        "leasing_tasks:schedules",
        "Schedules",
    )


def _more_paused(figures: Figures) -> Need | None:
    count = figures.more_paused_schedules
    if not count:
        return None
    return Need(
        "paused_schedules",
        "info",
        "1 more schedule is paused." if count.value == 1 else f"{count} more schedules are paused.",
        "Each is listed with who paused it and why.",
        "leasing_tasks:schedules",
        "Schedules",
    )


def _wanted(lease_id: str, sentence: Sentence) -> Need:
    return Need(
        "lease_wanted",
        "warning",
        sentence,
        "Whoever waits goes on when the holder releases it or loses it: end the holder's program, "
        "or revoke the lease on its page.",
        "leasing:detail",
        "Lease",
        key=lease_id,
    )


def _waiting(figures: Figures) -> list[Need]:
    wait = figures.longest_wait
    if wait is None or wait <= WAITS:
        return []
    # Those without a handler are named apart.
    named = [each for each in figures.reasons if each.diagnosis.code != "unknown_task"]
    found = [
        Need(
            "waits_long",
            "warning" if reason.wait > WAITS_LONG else "info",
            reason.sentence,
            reason.diagnosis.next,
            *_in_the_way(reason),
        )
        for reason in named[:NAMED]
        if reason.wait > WAITS
    ]
    where = figures.longest_wait_in
    oldest = f"The oldest task in the queue {where} has been due for {span(wait)}."
    next_ = "Workers serve the queue. The task's page says what it waits for."
    severity = "warning" if wait > WAITS_LONG else "info"
    unexplained = Need("waits_long", severity, oldest, next_, "leasing_tasks:queues", "Queues")
    return found or [unexplained]


def _in_the_way(reason: Reason) -> tuple[str, str, str, int | None]:
    """Return where the tasks are that tasks wait for: the view, its link, its query, its key."""
    if task := getattr(reason.diagnosis, "holder", None):
        return "leasing_tasks:detail", f"task:{task}", "", task
    if handler := getattr(reason.diagnosis, "handler", ""):
        query = {"state": "running", "name": handler}
        return "leasing_tasks:list", "Tasks in the way", f"?{urlencode(query)}", None
    query = {"state": "ready", "queue": reason.queue}
    return "leasing_tasks:list", "Waiting tasks", f"?{urlencode(query)}", None


def _schedules(figures: Figures) -> Need | None:
    count = figures.overdue_schedules
    if not count:
        return None
    return Need(
        "overdue_schedule",
        "warning",
        "1 schedule is overdue." if count.value == 1 else f"{count} schedules are overdue.",
        "No running worker has its handler, or enqueueing fails: see the workers' logs.",
        "leasing_tasks:schedules",
        "Schedules",
    )


def _at_work(figures: Figures) -> str:
    doing = _tasks(figures.running, "running", "running") if figures.running else "No tasks running"
    where = plural(figures.workers, "worker") if figures.workers else "remote workers"
    return f"{doing} on {where}, {figures.ready or 'none'} waiting."


def _locked(keys: list[int], session: Sentence, remedy: str) -> Need:
    rows = f"The rows of {len(keys)} tasks are locked by "
    if len(keys) == 1:
        rows = f"The row of task:{keys[0]} is locked by "
    return Need(
        "row_locked",
        "critical",
        Sentence(session.now, rows, *session.parts, "."),
        "Neither renewal nor recovery can proceed until that transaction ends. To end it: "
        + remedy,
        "leasing_tasks:detail",
        f"task:{keys[0]}",
        key=keys[0],
    )


def _stuck(figures: Figures) -> Need | None:
    # What a sweep is about to find is no news, as long as somebody sweeps.
    stuck = figures.overdue if figures.sweepers else figures.stuck
    if not stuck or stuck.value <= sum(len(keys) for keys, *_ in figures.locks):
        return None
    heals = (
        "Recovery should have taken it by now: its page says what is in the way."
        if figures.sweepers and stuck.value == 1
        else "Recovery should have taken them by now: their pages say what is in the way."
        if figures.sweepers
        else "This will not recover automatically: no running worker recovers tasks. Start one: "
        "manage.py run_worker."
    )
    headline = f"{_tasks(stuck, 'is', 'are')} stuck: lease expired, or no progress."
    code = "stuck" if figures.sweepers else "no_recoverer"
    return Need(code, "critical", headline, heals, "leasing_tasks:stuck", "Stuck tasks")


def _workers(figures: Figures, unread: Sequence[str]) -> Need | None:
    if figures.workers:
        return None
    if "workers" in unread:
        return None
    if _held_remotely(figures):
        return None
    if not figures.running and not _is_due(figures):
        return Need(
            "nobody_works",
            "info",
            "No workers are running. No tasks are waiting for one.",
            "Start a worker: manage.py run_worker.",
            "leasing_tasks:workers",
            "Workers",
        )
    return Need(
        "no_worker",
        "critical",
        f"No workers are running; {_waiting_tasks(figures.ready or Capped(0))}.",
        "Tasks wait until one is started: manage.py run_worker. Remote workers are seen only "
        "while they hold tasks.",
        "leasing_tasks:workers",
        "Workers",
    )


def _is_due(figures: Figures) -> bool:
    """Return True if tasks are due that a worker could claim: in queues that are not paused."""
    if figures.ready is None:
        return False
    return figures.ready.value > sum(line.ready.value for line in figures.paused)


def _held_remotely(figures: Figures) -> bool:
    """Return True if tasks are renewed, by whom ever: remote workers send no heartbeats."""
    if figures.running is None or figures.stuck is None:
        return False
    return figures.running.value > figures.stuck.value


def _failed(figures: Figures) -> Need | None:
    if not figures.failed:
        return None
    detail: list[str | Moment] = []
    for each in figures.failures[:NAMED]:
        detail += [f"{each.count} {each.name}: {each.error}, the last ", Moment(each.at), " · "]
    if more := len(figures.failures) - NAMED:
        detail += [f"{plural(more, 'more error')} · "] * (more > 0)
    stays = "A failed task stays failed until someone retries or discards it."
    is_fresh = any(figures.now - each.at < FRESH for each in figures.failures)
    return Need(
        "failed",
        "warning" if is_fresh else "info",
        f"{_tasks(figures.failed, 'has', 'have')} failed.",
        Sentence(figures.now, *detail, stays),
        "leasing_tasks:list",
        "Failed tasks",
        "?state=failed",
    )


def _generator(figures: Figures) -> Need | None:
    if figures.start_unheard is not None and figures.start_unheard > PATIENCE:
        return Need(
            "start_unheard",
            "warning",
            f"The generator was started {span(figures.start_unheard)} ago but is not running.",
            "No generator process has picked it up. Start one: manage.py run_generator.",
            "leasing_tasks:generator",
            "Generator",
        )
    if figures.stop_unheard is not None and figures.stop_unheard > PATIENCE:
        return Need(
            "stop_unheard",
            "warning",
            f"The generator was stopped {span(figures.stop_unheard)} ago, but its holder has "
            "not acknowledged it.",
            "Nothing is generated in the meantime: every batch checks first.",
            "leasing_tasks:generator",
            "Generator",
        )
    return None


def _named(workers: Sequence[str]) -> str:
    if len(workers) > NAMED:
        return f"{len(workers)} workers"
    return f"Worker{'s' * (len(workers) > 1)} {_and(workers)}"


def _waiting_tasks(count: Capped) -> str:
    return _tasks(count, "is waiting", "are waiting")


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _tasks(count: Capped, one: str, many: str) -> str:
    return f"1 task {one}" if count.value == 1 else f"{count} tasks {many}"
