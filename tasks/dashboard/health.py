"""Is all well? One sentence, and the list of what needs somebody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from leasing.humanize import plural, span
from leasing.web.paging import Capped
from tasks.dashboard.queue_rows import QueueLine

#: How grave, in rising order.
SEVERITIES = ("ok", "info", "warning", "critical")

#: For how long a wish may go unheard before somebody is called.
PATIENCE = timedelta(seconds=10)

#: More workers than this are counted, not named.
NAMED = 3

#: How long recovery may take to find a task before it is said to be stuck for somebody to see.
SWEPT_WITHIN = timedelta(seconds=5)


#: How long a task may be due, in a queue that is served, before it is news.
WAITS_LONG = timedelta(minutes=5)


@dataclass(frozen=True)
class Figures:
    """What the overview knows, all read at one time; None is what could not be read."""

    ready: Capped | None = None
    scheduled: Capped | None = None
    running: Capped | None = None
    stuck: Capped | None = None
    failed: Capped | None = None
    #: Stuck for longer than recovery takes.
    overdue: Capped | None = None
    #: How long the task has been due that has waited longest, where nothing is paused.
    longest_wait: timedelta | None = None
    #: Queues that stand still, and queues that nobody serves although something waits there.
    paused: list[QueueLine] = field(default_factory=list)
    unserved: list[QueueLine] = field(default_factory=list)
    #: Queues where something waits that only Celery workers serve, while no relay tells them.
    unpublished: list[QueueLine] = field(default_factory=list)
    #: Workers that were seen lately, and how many of them run recovery.
    workers: int = 0
    sweepers: int = 0
    #: Workers that went without signing off, and those whose sign of life is missing.
    gone: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    #: Schedules whose moment has passed without anybody serving it.
    overdue_schedules: Capped | None = None
    #: How long the generator has been wished to run without running, or to stop without
    #: anyone acknowledging it.
    start_unheard: timedelta | None = None
    stop_unheard: timedelta | None = None

    def live_marks(self) -> object:
        """What the page shows of them as they are; the rest it tells in words."""
        return [self.running, self.ready, self.scheduled, self.stuck, self.failed]


@dataclass(frozen=True)
class Need:
    """Something that needs somebody: what is wrong, what follows, and where to look.

    ``code`` names it for programs and tests, whatever its headline says.
    """

    code: str
    severity: str
    headline: str
    detail: str
    view: str
    link: str
    query: str = ""


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
        _stuck(figures),
        _workers(figures, unread),
        *[_unserved(line) for line in figures.unserved if figures.workers],
        *[_unpublished(line) for line in figures.unpublished],
        _vanished(figures),
        _failed(figures),
        *[_paused(line) for line in figures.paused if line.ready],
        _waiting(figures),
        _schedules(figures),
        _generator(figures),
    ]
    needs = sorted(
        [need for need in found if need is not None],
        key=lambda need: -SEVERITIES.index(need.severity),
    )
    if not needs:
        return Health("ok", f"All is well. {_at_work(figures)}")
    count = len(needs)
    sentence = "1 thing needs you." if count == 1 else f"{count} things need you."
    return Health(needs[0].severity, sentence, needs)


def _unread(parts: Sequence[str]) -> Need | None:
    if not parts:
        return None
    return Need(
        "unread",
        "warning",
        f"Not all could be read: {_and(parts)}.",
        "What is shown of it here is missing, and may be bad. The log of the web process says why.",
        "leasing_tasks:overview",
        "Try again",
    )


def _unserved(line: QueueLine) -> Need:
    return Need(
        "unserved",
        "critical",
        f"Nobody serves the queue {line.name}, and {_tasks(line.ready, 'waits', 'wait')} there.",
        "The workers that run serve other queues. Start one that serves it: "
        f"manage.py run_worker --queue {line.name}.",
        "leasing_tasks:queues",
        "Queues",
    )


def _unpublished(line: QueueLine) -> Need:
    return Need(
        "unpublished",
        "critical",
        f"Nobody publishes the queue {line.name}, and {_tasks(line.ready, 'waits', 'wait')} there.",
        "Only Celery workers serve it, and no relay was seen lately. Start one: "
        "manage.py run_relay.",
        "leasing_tasks:workers",
        "Workers",
    )


def _vanished(figures: Figures) -> Need | None:
    if figures.gone:
        one = len(figures.gone) == 1
        return Need(
            "gone",
            "warning",
            f"{_and(figures.gone)} vanished without signing off."
            if len(figures.gone) <= NAMED
            else f"{len(figures.gone)} workers vanished without signing off.",
            f"What {'it' if one else 'they'} held goes on elsewhere once its leases have expired.",
            "leasing_tasks:workers",
            "Workers that are gone",
            "?state=gone",
        )
    if figures.late:
        return Need(
            "late",
            "info",
            f"{_and(figures.late)} {'is' if len(figures.late) == 1 else 'are'} late."
            if len(figures.late) <= NAMED
            else f"{len(figures.late)} workers are late.",
            "A sign of life is missing. Wait a moment: it comes back, or it is gone.",
            "leasing_tasks:workers",
            "Workers",
        )
    return None


def _paused(line: QueueLine) -> Need:
    queue = line.queue
    by = f" by {queue.paused_by}" if queue and queue.paused_by else ""
    why = f" Reason: {queue.reason}" if queue and queue.reason else ""
    return Need(
        "paused",
        "info",
        f"The queue {line.name} is paused{by}, and {_tasks(line.ready, 'waits', 'wait')} there.",
        f"Nothing of it is claimed until somebody resumes it.{why}",
        "leasing_tasks:queues",
        "Queues",
    )


def _waiting(figures: Figures) -> Need | None:
    wait = figures.longest_wait
    if wait is None or wait <= WAITS_LONG or not figures.workers:
        return None
    return Need(
        "waits_long",
        "warning",
        f"The longest waiting task has been due for {span(wait)}.",
        "Workers serve its queue, and are busy with others. More of them, or more threads, help.",
        "leasing_tasks:queues",
        "Queues",
    )


def _schedules(figures: Figures) -> Need | None:
    count = figures.overdue_schedules
    if not count:
        return None
    return Need(
        "overdue_schedule",
        "warning",
        "1 schedule is overdue." if count.value == 1 else f"{count} schedules are overdue.",
        "No worker runs that has code for it, or its task cannot be enqueued.",
        "leasing_tasks:schedules",
        "Schedules",
    )


def _at_work(figures: Figures) -> str:
    doing = _tasks(figures.running, "runs", "run") if figures.running else "Nothing runs"
    waiting = f"{figures.ready} wait" if figures.ready else "nothing waits"
    if figures.ready and figures.ready.value == 1:
        waiting = "1 waits"
    return f"{doing} on {plural(figures.workers, 'worker')}, {waiting}."


def _stuck(figures: Figures) -> Need | None:
    # What a sweep is about to find is no news, as long as somebody sweeps.
    stuck = figures.overdue if figures.sweepers else figures.stuck
    if not stuck:
        return None
    heals = (
        f"Recovery should have taken {'it' if stuck.value == 1 else 'them'} back by now."
        if figures.sweepers
        else "No worker that recovers tasks is alive: this will not heal by itself."
    )
    headline = f"{_tasks(stuck, 'is', 'are')} stuck: nobody renews the lease."
    code = "stuck" if figures.sweepers else "no_recoverer"
    return Need(code, "critical", headline, heals, "leasing_tasks:stuck", "Stuck tasks")


def _workers(figures: Figures, unread: Sequence[str]) -> Need | None:
    if figures.workers:
        return None
    if "workers" in unread:
        return None
    if not figures.ready and not figures.running and not figures.scheduled:
        return Need(
            "nobody_works",
            "info",
            "Nobody works.",
            "Nothing waits either. Start a worker: manage.py run_worker.",
            "leasing_tasks:workers",
            "Workers",
        )
    return Need(
        "no_worker",
        "critical",
        f"Nobody works, and {_tasks(figures.ready or Capped(0), 'waits', 'wait')}.",
        "No worker was seen lately. Start one: manage.py run_worker.",
        "leasing_tasks:workers",
        "Workers",
    )


def _failed(figures: Figures) -> Need | None:
    if not figures.failed:
        return None
    return Need(
        "failed",
        "warning",
        f"{_tasks(figures.failed, 'has', 'have')} failed for good.",
        "A failed task stays as it is until somebody sets it ready again, or discards it.",
        "leasing_tasks:list",
        "Failed tasks",
        "?state=failed",
    )


def _generator(figures: Figures) -> Need | None:
    if figures.start_unheard is not None and figures.start_unheard > PATIENCE:
        return Need(
            "start_unheard",
            "warning",
            f"The generator was started {span(figures.start_unheard)} ago, and does not run.",
            "No generator process has taken it up. Start one: manage.py run_generator.",
            "leasing_tasks:generator",
            "Generator",
        )
    if figures.stop_unheard is not None and figures.stop_unheard > PATIENCE:
        return Need(
            "stop_unheard",
            "warning",
            f"The generator was stopped {span(figures.stop_unheard)} ago, and its holder has "
            "not acknowledged it.",
            "Nothing more is generated all the same: each batch asks first.",
            "leasing_tasks:generator",
            "Generator",
        )
    return None


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _tasks(count: Capped, one: str, many: str) -> str:
    return f"1 task {one}" if count.value == 1 else f"{count} tasks {many}"
