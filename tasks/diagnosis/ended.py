"""Tasks that are over."""

from __future__ import annotations

from leasing.diagnosis.base import Diagnosis
from tasks.diagnosis.actions import DISCARD, RETRY
from tasks.diagnosis.facts import attempt_facts, stamped
from tasks.models import Task
from tasks.querysets import TaskStatus


def ended(task: Task) -> Diagnosis:
    """It ended, in whatever way."""
    until = f"It ended at {stamped(task.processed_at)}."
    facts = [("Ended", stamped(task.processed_at)), *attempt_facts(task)]
    if task.status == TaskStatus.SUCCEEDED:
        headline = f"It was completed by {task.holder}."
        return Diagnosis("done", "ok", headline, "Nothing more.", until=until, facts=facts)
    if task.status == TaskStatus.CANCELLED:
        by = f" by {task.cancel_requested_by}" if task.cancel_requested_by else ""
        code, severity, headline = "cancelled", "info", f"It was cancelled{by}."
        next_ = "Nothing more."
    else:
        facts.append(("Last error", task.last_error))
        next_ = "Nothing, until someone retries it."
        code, severity = "given_up", "critical"
        headline = "Its handler gave up: the error is not one that another attempt would mend."
        if task.attempts >= task.max_attempts:
            code = "exhausted"
            headline = f"All of its {task.max_attempts} attempts went wrong."
            if task.max_attempts == 1:
                headline = "Its only attempt went wrong."
    return Diagnosis(
        code, severity, headline, next_, until=until, facts=facts, actions=[RETRY, DISCARD]
    )
