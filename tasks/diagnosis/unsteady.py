"""Tasks that go from worker to worker, and such as the clock was set back under."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from leasing.diagnosis.base import FLAPPING_WITHIN, Diagnosis, is_skewed
from leasing.humanize import plural, span
from tasks.diagnosis.actions import CANCEL, RESCHEDULE, REVOKE
from tasks.diagnosis.facts import attempt_facts, holder_facts, stamped, until
from tasks.models import Task
from tasks.querysets import TaskStatus

#: How many of those who lost it are named.
NAMED = 5


def flapping(task: Task, losses: list[str], found: Diagnosis) -> Diagnosis:
    """It was lost from each of ``losses`` lately; ``found`` is what there is to say beside."""
    named = ", ".join(dict.fromkeys(losses[:NAMED]))
    left = task.max_attempts - task.attempts
    then = (
        f"After {plural(left, 'more attempt')} it is dead."
        if left > 0
        else "This is its last attempt."
    )
    return replace(
        found,
        code="flapping",
        severity="warning",
        headline=f"It goes from worker to worker: {len(losses)} lost it or gave it back within "
        f"{span(FLAPPING_WITHIN)}, and it ended with none.",
        next=f"{found.next} {then} It may be what ends them: look at its memory, its time and "
        "its attempts.",
        facts=[*found.facts, ("Lost by", named)],
        actions=found.actions or [RESCHEDULE, CANCEL],
    )


def skewed(task: Task, now: datetime) -> Diagnosis:
    """Something that has been lies ahead by the database's clock."""
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
    facts = [(f"{name} at", f"{stamped(moment)}, ahead") for name, moment in ahead.items()]
    facts.append(("Now, by the database", stamped(now)))
    headline = (
        f"The database's clock is {span(furthest)} behind what it was when this was written: it "
        "was set back, or another server took over."
    )
    if task.status == TaskStatus.RUNNING:
        return Diagnosis(
            "clock_skew",
            "warning",
            headline,
            "Its lease lasts longer by as much: if its holder dies, it is recovered that much "
            "later. Heartbeats set it right.",
            who=f"{task.holder}.",
            until=f"Unless it is renewed: {until(task, now)}.",
            facts=[*facts, *holder_facts(task, now)],
            actions=[REVOKE, CANCEL],
        )
    return Diagnosis(
        "clock_skew",
        "warning",
        headline,
        "It is claimed when the clock has come to the time it is scheduled for.",
        until=f"{stamped(task.scheduled_at)}.",
        facts=[*facts, *attempt_facts(task)],
        actions=[RESCHEDULE, CANCEL],
    )
