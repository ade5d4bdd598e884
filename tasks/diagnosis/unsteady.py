"""Diagnose tasks that several workers have lost, and tasks with timestamps in the future."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from leasing.diagnosis.base import FLAPPING_WITHIN, Diagnosis, is_skewed
from leasing.humanize import plural, span
from tasks.diagnosis.actions import CANCEL, RESCHEDULE, REVOKE
from tasks.diagnosis.facts import attempt_facts, holder_facts, stamped, until
from tasks.models import Task
from tasks.querysets import TaskStatus

#: Former holders that are named.
NAMED = 5


def flapping(task: Task, losses: list[tuple[str, bool]], diagnosis: Diagnosis) -> Diagnosis:
    """Extend the diagnosis of a task that its holders have lost repeatedly.

    Args:
        task: The task.
        losses: The holder of each recent loss, the latest first, and True if it died.
        diagnosis: The diagnosis without regard to the losses.
    """
    named = ", ".join(dict.fromkeys(holder for holder, _ in losses[:NAMED]))
    often = f"{len(losses)} times within {span(FLAPPING_WITHIN)}"
    headline = f"Unstable: lost or given back {often}, and never completed."
    if all(has_died for _, has_died in losses):
        headline = f"Each worker that ran it died, {often}. It may be the cause."
    left = task.max_attempts - task.attempts
    then = (
        f"It fails after {plural(left, 'more attempt')}."
        if left > 0
        else "This is its last attempt."
    )
    return replace(
        diagnosis,
        code="flapping",
        severity="warning",
        headline=headline,
        next=diagnosis.next
        + f" {then} The task itself may be killing its workers: check its memory "
        "use, its run time and its attempts.",
        facts=[*diagnosis.facts, ("Lost by", named)],
        actions=diagnosis.actions or [RESCHEDULE, CANCEL],
    )


def skewed(task: Task, now: datetime) -> Diagnosis:
    """Diagnose a task whose past events are in the future by the database's clock."""
    moments = {
        "Enqueued": task.created_at,
        "Claimed": task.acquired_at,
        "Last heartbeat": task.renewed_at,
    }
    ahead = {
        name: moment
        for name, moment in moments.items()
        if moment is not None and is_skewed(now, moment)
    }
    furthest = max(ahead.values()) - now
    facts = [(f"{name} at", f"{stamped(moment)}, in the future") for name, moment in ahead.items()]
    facts.append(("Database time", stamped(now)))
    headline = (
        f"The database clock is {span(furthest)} behind the time recorded here: it was set back, "
        "or another server took over."
    )
    if task.status == TaskStatus.RUNNING:
        return Diagnosis(
            "clock_skew",
            "warning",
            headline,
            f"Its lease lasts {span(furthest)} longer: if its holder dies, recovery is delayed by "
            "as much. The next heartbeat corrects it.",
            who=f"{task.holder}.",
            until=f"Unless renewed: {until(task, now)}.",
            facts=[*facts, *holder_facts(task, now)],
            actions=[REVOKE, CANCEL],
        )
    return Diagnosis(
        "clock_skew",
        "warning",
        headline,
        "It is claimed when the clock reaches its scheduled time.",
        until=f"{stamped(task.scheduled_at)}.",
        facts=[*facts, *attempt_facts(task)],
        actions=[RESCHEDULE, CANCEL],
    )
