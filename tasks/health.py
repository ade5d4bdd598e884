"""Is all well? One sentence, and the list of what needs somebody."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from leasing.paging import Capped
from leasing.wording import plural, span

#: How grave, in rising order.
SEVERITIES = ("ok", "info", "warning", "critical")

#: For how long a wish may go unheard before somebody is called.
PATIENCE = timedelta(seconds=10)

#: How long recovery may take to find a task before it is said to be stuck for somebody to see.
SWEPT_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True)
class Figures:
    """What the overview knows, all read at one time."""

    ready: Capped
    scheduled: Capped
    running: Capped
    stuck: Capped
    failed: Capped
    #: Stuck for longer than recovery takes.
    overdue: Capped = Capped(0)
    #: Workers that were seen lately, and how many of them run recovery.
    workers: int = 0
    sweepers: int = 0
    #: How long the generator has been wished to run without running, or to stop without
    #: anyone acknowledging it.
    start_unheard: timedelta | None = None
    stop_unheard: timedelta | None = None


@dataclass(frozen=True)
class Need:
    """Something that needs somebody: what is wrong, what follows, and where to look."""

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


def assess(figures: Figures) -> Health:
    """Judge ``figures``; the gravest need comes first."""
    found = [
        need
        for need in (_stuck(figures), _workers(figures), _failed(figures), _generator(figures))
        if need is not None
    ]
    needs = sorted(found, key=lambda need: -SEVERITIES.index(need.severity))
    if not needs:
        return Health("ok", f"All is well. {_at_work(figures)}")
    count = len(needs)
    sentence = "1 thing needs you." if count == 1 else f"{count} things need you."
    return Health(needs[0].severity, sentence, needs)


def _at_work(figures: Figures) -> str:
    doing = _tasks(figures.running, "runs", "run") if figures.running else "Nothing runs"
    waiting = f"{figures.ready} wait" if figures.ready else "nothing waits"
    if str(figures.ready) == "1":
        waiting = "1 waits"
    return f"{doing} on {plural(figures.workers, 'worker')}, {waiting}."


def _stuck(figures: Figures) -> Need | None:
    # What a sweep is about to find is no news, as long as somebody sweeps.
    stuck = figures.overdue if figures.sweepers else figures.stuck
    if not stuck:
        return None
    heals = (
        "Recovery should have taken them back by now. Their pages say more."
        if figures.sweepers
        else "No worker that recovers tasks is alive: this will not heal by itself."
    )
    headline = f"{_tasks(stuck, 'is', 'are')} stuck: nobody renews the lease."
    return Need("critical", headline, heals, "tasks:stuck", "Stuck tasks")


def _workers(figures: Figures) -> Need | None:
    if figures.workers:
        return None
    if not figures.ready and not figures.running and not figures.scheduled:
        return Need(
            "info",
            "Nobody works.",
            "Nothing waits either. Start a worker: manage.py run_worker.",
            "tasks:workers",
            "Workers",
        )
    return Need(
        "critical",
        f"Nobody works, and {_tasks(figures.ready, 'waits', 'wait')}.",
        "No worker was seen lately. Start one: manage.py run_worker.",
        "tasks:workers",
        "Workers",
    )


def _failed(figures: Figures) -> Need | None:
    if not figures.failed:
        return None
    return Need(
        "warning",
        f"{_tasks(figures.failed, 'has', 'have')} failed for good.",
        "They stay as they are until somebody sets them ready again.",
        "tasks:list",
        "Failed tasks",
        "?state=failed",
    )


def _generator(figures: Figures) -> Need | None:
    if figures.start_unheard is not None and figures.start_unheard > PATIENCE:
        return Need(
            "warning",
            f"The generator was started {span(figures.start_unheard)} ago, and does not run.",
            "No generator process has taken it up. Start one: manage.py run_generator.",
            "tasks:generator",
            "Generator",
        )
    if figures.stop_unheard is not None and figures.stop_unheard > PATIENCE:
        return Need(
            "warning",
            f"The generator was stopped {span(figures.stop_unheard)} ago, and its holder has "
            "not acknowledged it.",
            "Nothing more is generated all the same: each batch asks first.",
            "tasks:generator",
            "Generator",
        )
    return None


def _tasks(count: Capped, one: str, many: str) -> str:
    return f"1 task {one}" if count.value == 1 else f"{count} tasks {many}"
