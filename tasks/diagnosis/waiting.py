"""Diagnose tasks that wait to be claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import Moment, Sentence, brief, plural, span
from leasing.web.counts import Capped
from tasks import registry
from tasks.conf import task_settings
from tasks.diagnosis.actions import CANCEL, RESCHEDULE, RESUME
from tasks.diagnosis.broker import published, unpublished
from tasks.diagnosis.context import DiagnosisContext
from tasks.diagnosis.facts import attempt_facts, progress_words, stamped
from tasks.diagnosis.handlers import HandlerUse, usual
from tasks.diagnosis.slots import KINDS, Slots, in_words
from tasks.diagnosis.unclaimed import diagnosed
from tasks.models import Queue, Task, Worker, WorkerRole
from tasks.payload import MISMATCH, OTHER_RELEASE
from tasks.registry import UNKNOWN_DELAY

#: Holders of a key, and handlers that occupy slots, that are named.
NAMED = 5


@dataclass(frozen=True)
class Waiting(Diagnosis):
    """The diagnosis of a task that waits for a key or a slot, or for a worker to claim it."""

    #: The words after "waits", and the reason, from which ``many`` makes a sentence.
    for_: str = ""
    why: Sequence[str | Moment] = ()
    #: The first task that holds the key, or the handler that occupies most slots.
    holder: int | None = None
    handler: str = ""


def many(diagnosis: Diagnosis, now: datetime, count: Capped, since: datetime) -> Sentence:
    """Return the reason of one task as that of several.

    Args:
        diagnosis: The diagnosis of one of them.
        now: The database's clock.
        count: The number of tasks that wait for the same reason.
        since: Since when the first of them has been due.
    """
    wait = "1 task waits" if count.value == 1 else f"{count} tasks wait"
    of = "" if count.value == 1 else ", the oldest"
    why: Sequence[str | Moment] = (diagnosis.headline[:1].lower() + diagnosis.headline[1:],)
    for_ = ""
    if isinstance(diagnosis, Waiting):
        for_, why = diagnosis.for_, (*diagnosis.why, ".")
    return Sentence(now, f"{wait}{for_}{of} for ", Moment(since, lasts=True), ": ", *why)


def later(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    """Diagnose a task that is scheduled for later.

    Args:
        task: The task.
        now: The database's clock.
        context: The workers and their tasks.
    """
    wait = Moment(task.scheduled_at, past="due")
    facts = [("Not before", stamped(task.scheduled_at)), *attempt_facts(task)]
    if unknown := _unknown(task, now, context, facts):
        return unknown
    until = f"{stamped(task.scheduled_at)}, {wait.words(now)}."
    reason = context.put_off.get(task.pk, "")
    if MISMATCH in reason:
        return _unfit(task, reason, facts)
    if reason or not task.last_error:
        headline = Sentence(now, "Scheduled to start ", wait, ".")
        if task.started_at:
            says = "Postponed without using an attempt. Runs again "
            headline = Sentence(now, says, wait, ".")
        if reason:
            headline += f" Reason: {reason}"
        next_ = "A worker claims it then."
        return diagnosed("scheduled", "info", headline, next_, until, facts)
    # A task that recovery took back was not released.
    end = "was lost" if task.released_at is None else "failed"
    headline = Sentence(now, f"The last attempt {end}. Next retry ", wait, ".")
    next_ = f"Attempt {task.attempts + 1} of {task.max_attempts} starts then."
    facts.append(("Last error", task.last_error))
    return diagnosed("backoff", "info", headline, next_, until, facts)


def waiting(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    """Diagnose a task that is due. Arguments are those of ``later``."""
    facts = [("Due for", span(now - task.scheduled_at)), *attempt_facts(task)]
    for_ = f" in the queue {task.queue}"
    if task.queue in context.paused:
        return _paused(context.paused[task.queue], facts)
    serving = context.serving(task.queue)
    able = [worker for worker in serving if task.name in worker.handlers]
    if not serving and task.queue in context.held_queues:
        headline = "Due. Remote workers hold tasks of its queue."
        next_ = "A remote worker claims tasks when it has free slots."
        why: Sequence[str] = ("only remote workers serve it, and none claims more tasks",)
        until = "A free slot."
        return Waiting("due", "ok", headline, next_, until=until, facts=facts, for_=for_, why=why)
    if not serving:
        headline = f"No worker that serves the queue {task.queue} was seen recently."
        or_celery = f", or celery worker -Q {task.queue}"
        if task.queue not in task_settings.CELERY_QUEUES:
            or_celery = ""
        next_ = (
            "Its tasks wait until such a worker is started: manage.py run_worker --queue "
            f"{task.queue}{or_celery}."
        )
        until = "A worker serves the queue."
        return diagnosed("no_worker", "critical", headline, next_, until, facts)
    if unknown := _unknown(task, now, context, facts):
        return unknown
    if task.concurrency_key and context.keys[task.concurrency_key] >= (task.concurrency_limit or 1):
        return _key_held(task, now, context, facts)
    awake = [worker for worker in able if context.is_live(worker.name)]
    if not awake:
        headline = "No worker that can run it is sending heartbeats."
        next_ = "Tasks start when one recovers, or another is started: manage.py run_worker."
        return diagnosed("no_worker", "warning", headline, next_, "A worker is back.", facts)
    by_message = all(worker.role == WorkerRole.CELERY for worker in awake)
    if by_message and (problem := unpublished(task, context, facts)):
        return problem
    slots = context.slots_for(task.name, awake)
    facts.append(("Slots", in_words(slots)))
    if not any(each.free for each in slots):
        return _saturated(for_, slots, now, _busy(task, awake, context), len(awake), facts)
    if by_message:
        return published(task, now, facts)
    headline = "Due. A worker has a free slot for it."
    next_ = "The worker claims due tasks at its next poll."
    why, until = ("a worker has a free slot, but claims nothing",), "The next poll."
    return Waiting("due", "ok", headline, next_, until=until, facts=facts, for_=for_, why=why)


def _unknown(
    task: Task, now: datetime, context: DiagnosisContext, facts: list[tuple[str, str]]
) -> Diagnosis | None:
    """Diagnose a task whose name is unknown to all workers that serve its queue, as after a rename
    of its handler; None if one knows it, or none serves the queue."""
    serving = context.serving(task.queue)
    without = [worker for worker in serving if task.name not in worker.handlers]
    if len(without) < len(serving):
        if without:
            count = f"{len(without):,} of {plural(len(serving), 'worker')} of its queue"
            facts.append(("No handler in", f"{count}: these give it back for a minute"))
        return None
    if not serving:
        return None
    if task.last_error:
        facts.append(("Last error", task.last_error))
    are_older = all(worker.started_at < task.created_at for worker in serving)
    return diagnosed(
        "unknown_task",
        # Before that, a deploy may bring the handler in time.
        "critical" if task.scheduled_at <= now + UNKNOWN_DELAY else "warning",
        f"No live worker of the queue {task.queue} has a handler named {task.name}.",
        "A worker that claims it gives it back for a minute, without using an attempt, until one "
        f"has the handler. {missing_handler(task.name, are_older=are_older)}",
        "A worker has the handler.",
        facts,
    )


def missing_handler(name: str, *, are_older: bool) -> str:
    """Return what to do about tasks called ``name`` that no worker has a handler for.

    It advises no alias under a similar name: tasks of this name would run with a handler that has
    tasks of its own.

    Args:
        name: The name of the tasks.
        are_older: True if all workers of their queue started before the first was enqueued.
    """
    if name not in registry.names():
        return (
            "This process does not have it either. Deploy it, and restart the workers. If it was "
            f'renamed, keep the old name: @handler("its new name", aliases=["{name}"]).'
        )
    if are_older:
        return (
            "This process has it, and the workers started before the task was enqueued: restart "
            "them with the current release."
        )
    return (
        "This process has it: check which release the workers run, and whether they install the "
        "app of the handler."
    )


def _unfit(task: Task, reason: str, facts: list[tuple[str, str]]) -> Diagnosis:
    """Diagnose a task that a worker gave back for ``reason``: its handler cannot be called with its
    data."""
    facts.append(("Given back", plural(task.grants - task.attempts, "time")))
    why = reason.partition(f" {OTHER_RELEASE}")[0]
    return diagnosed(
        "invalid_arguments",
        "warning",
        f"Its data does not fit its handler: {why}",
        "The next worker that claims it runs it, if its release takes this data. Otherwise it "
        "gives it back for a minute, without using an attempt. Deploy a handler that takes the "
        "data, or cancel the task and enqueue it with the right data.",
        "A worker has a handler that takes its data.",
        facts,
    )


def _busy(
    task: Task, workers: Sequence[Worker], context: DiagnosisContext
) -> list[tuple[int, str, datetime]]:
    """Return the handlers that occupy the slots of ``workers`` that could run ``task``: the number
    of tasks, the handler, and the first claim, the most tasks first."""
    totals: dict[str, tuple[int, datetime]] = {}
    for worker in workers:
        for name, (count, since) in context.busy.get(worker.name, {}).items():
            if worker.kind_of(name) == worker.kind_of(task.name):
                others, first = totals.get(name, (0, since))
                totals[name] = others + count, min(first, since)
    return sorted(((count, name, since) for name, (count, since) in totals.items()), reverse=True)


def _saturated(
    for_: str,
    slots: list[Slots],
    now: datetime,
    busy: list[tuple[int, str, datetime]],
    workers: int,
    facts: list[tuple[str, str]],
) -> Diagnosis:
    total = sum(each.total for each in slots)
    kinds = {each.kind for each in slots}
    kind = kinds.pop() if len(kinds) == 1 else ""
    one, many, option = KINDS.get(kind, ("slot", "slots", "run_worker --help"))
    of = "the worker" if workers == 1 else f"the {workers:,} workers"
    why: list[str | Moment] = [f"all {total:,} {many} are busy"]
    if total < 2:
        why = [f"no {one} of {of} is free"]
    separator, takes = ": ", usual([name for _, name, _ in busy[:NAMED]], now)
    for count, name, since in busy[:NAMED]:
        start = f"{separator}{count:,} with {name} ("
        why += [start, Moment(since, lasts=True), f"{_usually(takes, name)})"]
        separator = ", "
    if blocked := sum(each.blocked for each in slots):
        why.append(f"{separator}{blocked:,} blocked by handlers whose tasks have ended")
    next_ = (
        "Tasks start as slots become free, those of higher priority first. To run more at a time, "
        f"start another worker, or give each worker more {many} ({option}). A task that hangs can "
        "be cancelled on its page."
    )
    if blocked:
        next_ += (
            " A blocked slot becomes free when its handler returns, or its worker is restarted: "
            "see the timeouts in the worker's log."
        )
    headline = Sentence(now, f"Waits{for_}: ", *why, ".")
    return Waiting(
        "saturated",
        "info",
        headline,
        next_,
        until="A slot is free.",
        facts=facts,
        actions=[RESCHEDULE, CANCEL],
        for_=for_,
        why=why,
        handler=busy[0][1] if busy else "",
    )


def _usually(takes: Mapping[str, HandlerUse], name: str) -> str:
    p50 = takes[name].run_p50 if name in takes else None
    return f", usually {brief(p50)}" if p50 else ""


def _key_held(
    task: Task, now: datetime, context: DiagnosisContext, facts: list[tuple[str, str]]
) -> Diagnosis:
    key, limit = task.concurrency_key, task.concurrency_limit or 1
    holders = context.key_holders.get(key, [])
    why: list[str | Moment] = []
    takes = usual([each.name for each in holders[:NAMED]], now)
    for each in holders[:NAMED]:
        progress = f", {words} done" if (words := progress_words(each)) else ""
        start = f"{', ' if why else 'held by '}task:{each.pk} ({each.name}, running for "
        end = f"{_usually(takes, each.name)}{progress})"
        why += [start, Moment(each.acquired_at or now, lasts=True), end]
    more = context.keys[key] - len(holders[:NAMED])
    if more or not why:
        why.append(f"{' and ' if why else 'held by '}{plural(more, 'other task')}")
    named = ", ".join(sorted({each.holder for each in holders[:NAMED]}))
    facts += [("Concurrency key", key), ("Key held by", named)]
    remedy = f" If task:{holders[0].pk} hangs, cancel it on its page." if holders else ""
    for_ = f" for the key {key}" + (f" ({limit} tasks at a time)" if limit > 1 else "")
    headline = Sentence(now, f"Waits{for_}: ", *why, ".")
    return Waiting(
        "key_held",
        "info",
        headline,
        "The next one starts when a task that holds the key ends or is recovered." + remedy,
        who=f"Nobody. Its key is held by {named}.",
        until="One of those tasks ends.",
        facts=facts,
        actions=[RESCHEDULE, CANCEL],
        for_=for_,
        why=why,
        holder=holders[0].pk if holders else None,
    )


def _paused(queue: Queue, facts: list[tuple[str, str]]) -> Diagnosis:
    facts += [("Paused at", stamped(queue.paused_at)), ("Paused by", queue.paused_by or "unknown")]
    if queue.reason:
        facts.append(("Reason", queue.reason))
    headline = f"The queue {queue.name} is paused" + (f": {queue.reason}" if queue.reason else ".")
    next_ = "Its tasks wait until someone resumes it."
    until = "Someone resumes the queue."
    actions = [RESUME, RESCHEDULE, CANCEL]
    return diagnosed("queue_paused", "warning", headline, next_, until, facts, actions)
