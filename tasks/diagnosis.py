"""Why a task is where it is: one function for pages, admin, API and command line.

Every diagnosis answers in one order: why (``headline``), who holds it and until when
(``facts``), what happens next (``next``), what can be done (``actions``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Count

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.signs import is_late
from leasing.wording import span, stamp
from tasks.models import Queue, Task, Worker, WorkerState
from tasks.querysets import TaskStatus

#: How many workers are looked at.
MOST_WORKERS = 1000
#: How many pairs of a holder and a concurrency key are looked at.
MOST_GROUPS = 10_000


@dataclass(frozen=True)
class Action:
    """Something an operator can do, and what follows from it."""

    name: str
    label: str
    consequence: str


REVOKE = Action(
    "revoke",
    "Take it from its holder",
    "Another worker may start while this one still runs. Its result will be refused, its side "
    "effects will not be undone.",
)
RETRY = Action(
    "retry",
    "Retry",
    "It is set ready now, with one attempt more if they were used up.",
)

CANCEL = Action(
    "cancel",
    "Cancel",
    "Those that wait end at once. Those that run are asked to: a handler that does not look may "
    "still complete its task. None of them is tried again.",
)


@dataclass(frozen=True)
class Diagnosis:
    """What an operator needs to know of one task."""

    code: str
    severity: str
    headline: str
    next: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Surroundings:
    """The workers that were seen lately, and what they hold: read once for many tasks."""

    now: datetime
    workers: dict[str, Worker]
    running: dict[str, int]
    paused: dict[str, Queue] = field(default_factory=dict)
    #: How many run of each concurrency key.
    by_key: dict[str, int] = field(default_factory=dict)

    @property
    def someone_sweeps(self) -> bool:
        return any(worker.sweeps for worker in self.workers.values())

    def serving(self, queue: str) -> list[Worker]:
        return [worker for worker in self.workers.values() if queue in worker.queues]

    def free_threads(self, workers: list[Worker]) -> int:
        return sum(max(0, w.concurrency - self.running.get(w.name, 0)) for w in workers)

    def is_live(self, name: str) -> bool:
        worker = self.workers.get(name)
        return worker is not None and getattr(worker, "state", "") == WorkerState.LIVE


def look_around() -> Surroundings:
    """Read what ``diagnose`` needs to know beside the task: four queries."""
    using = leasing_settings.DATABASE
    present = Worker.objects.using(using).present().with_state().order_by("id")[:MOST_WORKERS]
    held = Task.objects.using(using).running().values("holder", "concurrency_key")
    running: Counter[str] = Counter()
    by_key: Counter[str] = Counter()
    for row in held.annotate(tasks=Count("id"))[:MOST_GROUPS]:
        running[row["holder"]] += row["tasks"]
        by_key[row["concurrency_key"]] += row["tasks"]
    return Surroundings(
        now=database_now(using),
        workers={worker.name: worker for worker in present},
        running=running,
        paused={queue.name: queue for queue in Queue.objects.using(using).paused()},
        by_key=by_key,
    )


def diagnose(
    task: Task, now: datetime | None = None, around: Surroundings | None = None
) -> Diagnosis:
    """Explain ``task`` at ``now`` (the database's clock). ``around`` spares the queries when
    many tasks are explained."""
    around = around or look_around()
    now = now or around.now
    if task.status == TaskStatus.RUNNING:
        if task.expires_at <= now:
            return _expired(task, now, around)
        if idle := task.stalled_for(now):
            return _stalled(task, now, idle, around)
        return _held(task, now, around)
    if task.status == TaskStatus.READY:
        if task.scheduled_at > now:
            return _later(task, now)
        return _waiting(task, now, around)
    return _ended(task)


def _held(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    facts = _holder_facts(task, now)
    silent = now - (task.renewed_at or task.acquired_at or now)
    if task.cancel_requested_at is not None and not is_late(task, now):
        by = task.cancel_requested_by or "An operator"
        wait = span(now - task.cancel_requested_at)
        headline = f"{by} asked {wait} ago for it to be cancelled, and it still runs."
        next_ = (
            "Its holder hears of it with the next heartbeat, its handler at its next ensure() or "
            "await. A handler that does neither may complete it; it is not tried again."
        )
        return Diagnosis("cancel_requested", "info", headline, next_, facts, [REVOKE])
    if not is_late(task, now):
        headline = f"{task.holder} is working on it, and its heartbeats arrive."
        next_ = "It ends when its handler returns."
        return Diagnosis("running_ok", "ok", headline, next_, facts, [REVOKE])
    next_ = f"If no heartbeat comes within {span(task.expires_at - now)}, it is recovered."
    if task.holder in around.workers:
        headline = f"{task.holder} is alive, but the last heartbeat was {span(silent)} ago."
        return Diagnosis("late", "warning", headline, next_, facts, [REVOKE])
    headline = (
        f"{task.holder} has sent no heartbeat for {span(silent)}, and is no worker that was "
        "seen lately."
    )
    return Diagnosis("holder_gone", "warning", headline, next_, facts, [REVOKE])


def _stalled(task: Task, now: datetime, idle: timedelta, around: Surroundings) -> Diagnosis:
    headline = f"{task.holder}'s heartbeats arrive, but nothing has moved for {span(idle)}."
    facts = _holder_facts(task, now)
    if around.someone_sweeps:
        next_ = _after_the_sweep(task)
        return Diagnosis("no_progress", "warning", headline, next_, facts, [REVOKE])
    next_ = (
        "No worker runs that would take it from its holder: start one (manage.py run_worker), "
        "or a controller (manage.py run_recovery)."
    )
    return Diagnosis("no_progress", "critical", headline, next_, facts, [REVOKE])


def _after_the_sweep(task: Task) -> str:
    end = "dead: it was its last attempt" if task.attempts >= task.max_attempts else "ready again"
    if task.cancel_requested_at is not None:
        end = "cancelled, as someone asked"
    return (
        f"The next sweep, about a second away, makes it {end}. After that a late result is refused."
    )


def _expired(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    facts = _holder_facts(task, now)
    since = span(now - task.expires_at)
    if not around.someone_sweeps:
        headline = (
            f"{task.holder} let its lease expire {since} ago, and no worker runs that would "
            "recover the task."
        )
        next_ = (
            "This will not heal by itself: start a worker (manage.py run_worker), or a "
            "controller (manage.py run_recovery)."
        )
        return Diagnosis("no_recoverer", "critical", headline, next_, facts, [REVOKE])
    next_ = _after_the_sweep(task)
    if around.is_live(task.holder):
        headline = (
            f"{task.holder} is alive, but did not renew this task: its lease expired {since} ago."
        )
        return Diagnosis("expired_holder_alive", "warning", headline, next_, facts, [REVOKE])
    headline = f"{task.holder} is gone: its lease expired {since} ago."
    return Diagnosis("expired_unclaimed", "warning", headline, next_, facts, [REVOKE])


def _later(task: Task, now: datetime) -> Diagnosis:
    wait = span(task.scheduled_at - now)
    facts = [("Not before", _stamp(task.scheduled_at)), *_attempt_facts(task)]
    if not task.last_error:
        headline = f"It was enqueued to start in {wait}."
        if task.started_at:
            headline = f"It was put off, no attempt spent, and goes on in {wait}."
        return Diagnosis("scheduled", "info", headline, "Then a worker may claim it.", facts)
    headline = f"Its last attempt ended badly, and it waits {wait} for the next."
    next_ = f"Attempt {task.attempts + 1} of {task.max_attempts} follows then."
    facts.append(("Last error", task.last_error))
    return Diagnosis("backoff", "info", headline, next_, facts)


def _waiting(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    facts = [("Due since", span(now - task.scheduled_at)), *_attempt_facts(task)]
    if task.queue in around.paused:
        return _paused(around.paused[task.queue], facts)
    serving = around.serving(task.queue)
    able = [worker for worker in serving if task.name in worker.handlers]
    if not serving:
        headline = f"No worker was seen lately that serves the queue {task.queue}."
        next_ = "It waits until one is started: manage.py run_worker."
        return Diagnosis("no_worker", "critical", headline, next_, facts)
    if not able:
        headline = f"No worker of the queue {task.queue} has code for {task.name}."
        next_ = "Each worker that claims it gives it back for a minute, until one has the code."
        return Diagnosis("unknown_task", "critical", headline, next_, facts)
    if task.concurrency_key and around.by_key.get(task.concurrency_key, 0) >= _limit(task):
        facts.append(("Concurrency key", task.concurrency_key))
        headline = f"As many tasks of {task.concurrency_key} run as may: {_limit(task)}."
        next_ = "It starts when one of them ends or is recovered, in its turn."
        return Diagnosis("limit_reached", "info", headline, next_, facts)
    if not around.free_threads(able):
        headline = f"Every thread of the {len(able)} workers that could run it is busy."
        next_ = "It starts when one of them is free; tasks of higher priority go first."
        return Diagnosis("saturated", "info", headline, next_, facts)
    headline = "It is due, and a worker is free to take it."
    return Diagnosis("due", "ok", headline, "It is claimed at the next poll.", facts)


def _paused(queue: Queue, facts: list[tuple[str, str]]) -> Diagnosis:
    facts += [("Paused at", _stamp(queue.paused_at)), ("Paused by", queue.paused_by or "unknown")]
    if queue.reason:
        facts.append(("Reason", queue.reason))
    headline = f"The queue {queue.name} is paused" + (f": {queue.reason}" if queue.reason else ".")
    next_ = "It waits until someone resumes the queue."
    return Diagnosis("queue_paused", "warning", headline, next_, facts)


def _limit(task: Task) -> int:
    return task.concurrency_limit or 1


def _ended(task: Task) -> Diagnosis:
    facts = [("Ended", _stamp(task.processed_at)), *_attempt_facts(task)]
    if task.status == TaskStatus.SUCCEEDED:
        headline = f"It was completed by {task.holder}."
        return Diagnosis("done", "ok", headline, "Nothing more.", facts)
    if task.status == TaskStatus.CANCELLED:
        by = f" by {task.cancel_requested_by}" if task.cancel_requested_by else ""
        headline = f"It was cancelled{by}."
        return Diagnosis("cancelled", "info", headline, "Nothing more.", facts, [RETRY])
    facts.append(("Last error", task.last_error))
    next_ = "Nothing, until someone retries it."
    if task.attempts >= task.max_attempts:
        headline = f"All {task.max_attempts} attempts were used up."
        return Diagnosis("exhausted", "critical", headline, next_, facts, [RETRY])
    headline = "Its handler gave up: the error is not one that another attempt would mend."
    return Diagnosis("given_up", "critical", headline, next_, facts, [RETRY])


def _holder_facts(task: Task, now: datetime) -> list[tuple[str, str]]:
    ahead = task.expires_at - now
    until = f"in {span(ahead)}" if ahead > timedelta(0) else f"{span(-ahead)} ago"
    return [
        ("Held by", task.holder),
        ("Since", _stamp(task.acquired_at)),
        ("Last heartbeat", _stamp(task.renewed_at or task.acquired_at)),
        ("Until", f"{_stamp(task.expires_at)}, {until}"),
        *_progress_facts(task, now),
        *_attempt_facts(task),
    ]


def _progress_facts(task: Task, now: datetime) -> list[tuple[str, str]]:
    if task.progress_timeout is None or task.progressed_at is None:
        return []
    silent, allowed = span(now - task.progressed_at), span(task.progress_timeout)
    return [("Last progress", f"{silent} ago; taken from its holder after {allowed}")]


def _attempt_facts(task: Task) -> list[tuple[str, str]]:
    return [("Attempts", f"{task.attempts} of {task.max_attempts}")]


def _stamp(moment: datetime | None) -> str:
    return stamp(moment) if moment else "never"
