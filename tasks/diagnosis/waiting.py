"""Diagnose tasks that wait to be claimed."""

from __future__ import annotations

from datetime import datetime

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import Moment, Sentence, plural, span
from tasks import registry
from tasks.conf import task_settings
from tasks.diagnosis.actions import CANCEL, RESCHEDULE, RESUME
from tasks.diagnosis.broker import published, unpublished
from tasks.diagnosis.facts import attempt_facts, stamped
from tasks.diagnosis.slots import KINDS, Slots, in_words
from tasks.diagnosis.surroundings import Surroundings
from tasks.diagnosis.unclaimed import diagnosed
from tasks.models import Queue, Task, WorkerRole
from tasks.parameters import MISMATCH, OTHER_RELEASE
from tasks.registry import UNKNOWN_DELAY

#: Holders of a key that are named.
NAMED = 5


def later(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    """Diagnose a task that is scheduled for later.

    Args:
        task: The task.
        now: The database's clock.
        around: The workers and what they hold.
    """
    wait = Moment(task.scheduled_at, past="due")
    facts = [("Not before", stamped(task.scheduled_at)), *attempt_facts(task)]
    if found := _unknown(task, now, around, facts):
        return found
    until = f"{stamped(task.scheduled_at)}, {wait.words(now)}."
    reason = around.put_off.get(task.pk, "")
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
    # What was taken from its holder was not released.
    end = "was lost" if task.released_at is None else "failed"
    headline = Sentence(now, f"The last attempt {end}. Next retry ", wait, ".")
    next_ = f"Attempt {task.attempts + 1} of {task.max_attempts} starts then."
    facts.append(("Last error", task.last_error))
    return diagnosed("backoff", "info", headline, next_, until, facts)


def waiting(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    """Diagnose a task that is due. Arguments are those of ``later``."""
    facts = [("Due for", span(now - task.scheduled_at)), *attempt_facts(task)]
    if task.queue in around.paused:
        return _paused(around.paused[task.queue], facts)
    serving = around.serving(task.queue)
    able = [worker for worker in serving if task.name in worker.handlers]
    if not serving and task.queue in around.held_queues:
        headline = "Due. Remote workers hold tasks of its queue."
        next_ = "One of them claims it as soon as it has a free slot."
        return Diagnosis("due", "ok", headline, next_, until="A free slot.", facts=facts)
    if not serving:
        headline = f"No worker that serves the queue {task.queue} was seen recently."
        or_celery = f", or celery worker -Q {task.queue}"
        if task.queue not in task_settings.CELERY_QUEUES:
            or_celery = ""
        next_ = (
            "It waits until such a worker is started: manage.py run_worker --queue "
            f"{task.queue}{or_celery}."
        )
        until = "A worker serves the queue."
        return diagnosed("no_worker", "critical", headline, next_, until, facts)
    if found := _unknown(task, now, around, facts):
        return found
    holders = around.by_key.get(task.concurrency_key, {}) if task.concurrency_key else {}
    if sum(holders.values()) >= (task.concurrency_limit or 1):
        return _key_held(task, holders, facts)
    awake = [worker for worker in able if around.is_live(worker.name)]
    if not awake:
        headline = "No worker that can run it is sending heartbeats."
        next_ = "It starts when one recovers, or another is started: manage.py run_worker."
        return diagnosed("no_worker", "warning", headline, next_, "A worker is back.", facts)
    by_message = all(worker.role == WorkerRole.CELERY for worker in awake)
    if by_message and (found := unpublished(task, around, facts)):
        return found
    slots = around.slots_for(task.name, awake)
    facts.append(("Slots", in_words(slots)))
    if not any(each.free for each in slots):
        return _saturated(slots, len(awake), facts)
    if by_message:
        return published(task, now, facts)
    headline = "Due. A worker has a free slot for it."
    next_ = "It is claimed at the next poll."
    return Diagnosis("due", "ok", headline, next_, until="The next poll.", facts=facts)


def _unknown(
    task: Task, now: datetime, around: Surroundings, facts: list[tuple[str, str]]
) -> Diagnosis | None:
    """Diagnose a task whose name is unknown to all workers that serve its queue, as after a rename
    of its handler; None if one knows it, or none serves the queue."""
    serving = around.serving(task.queue)
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

    No name that is spelled alike is advised: as its alias, tasks of this name would run as those of
    another handler that is in use.

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


def _saturated(slots: list[Slots], workers: int, facts: list[tuple[str, str]]) -> Diagnosis:
    total = sum(each.total for each in slots)
    kinds = {each.kind for each in slots}
    kind = kinds.pop() if len(kinds) == 1 else ""
    one, many, option = KINDS.get(kind, ("slot", "slots", "run_worker --help"))
    of = "the worker" if workers == 1 else f"the {workers:,} workers"
    headline = f"All {total:,} {many} of {of} that can run it are busy."
    if total < 2:
        headline = f"No {one} of {of} that can run it is free."
    next_ = (
        "It starts when a slot becomes free; tasks of higher priority go first. To run more at a "
        f"time, start another worker, or give each more {many} ({option})."
    )
    if any(each.blocked for each in slots):
        next_ += (
            " A blocked slot is free when its handler returns, or its worker is restarted: see "
            "the timeouts in the worker's log."
        )
    return diagnosed("saturated", "info", headline, next_, "A slot is free.", facts)


def _key_held(task: Task, holders: dict[str, int], facts: list[tuple[str, str]]) -> Diagnosis:
    named = ", ".join(sorted(holders)[:NAMED]) + (", ..." if len(holders) > NAMED else "")
    facts += [("Concurrency key", task.concurrency_key), ("Key held by", named)]
    limit = task.concurrency_limit or 1
    return Diagnosis(
        "key_held",
        "info",
        f"The concurrency key {task.concurrency_key} is at its limit of {limit}.",
        "It starts in its turn, when one of those tasks ends or is recovered.",
        who=f"Nobody. Its key is held by {named}.",
        until="One of those tasks ends.",
        facts=facts,
        actions=[RESCHEDULE, CANCEL],
    )


def _paused(queue: Queue, facts: list[tuple[str, str]]) -> Diagnosis:
    facts += [("Paused at", stamped(queue.paused_at)), ("Paused by", queue.paused_by or "unknown")]
    if queue.reason:
        facts.append(("Reason", queue.reason))
    headline = f"The queue {queue.name} is paused" + (f": {queue.reason}" if queue.reason else ".")
    next_ = "It waits until someone resumes the queue."
    until = "Someone resumes the queue."
    actions = [RESUME, RESCHEDULE, CANCEL]
    return diagnosed("queue_paused", "warning", headline, next_, until, facts, actions)
