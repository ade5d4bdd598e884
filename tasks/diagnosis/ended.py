"""Diagnose tasks that have ended."""

from __future__ import annotations

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import plural
from tasks.diagnosis.actions import DISCARD, RETRY
from tasks.diagnosis.facts import attempt_facts, stamped
from tasks.models import Task
from tasks.querysets import TaskStatus
from tasks.querysets.recovery import is_lost_with_worker
from tasks.querysets.transitions import WITH_PARENT

OVER = "The task has ended. Nothing else will happen."


def ended(task: Task) -> Diagnosis:
    """Diagnose a task that succeeded, failed or was cancelled."""
    until = f"Ended at {stamped(task.processed_at)}."
    facts = [("Ended", stamped(task.processed_at)), *attempt_facts(task)]
    if task.status == TaskStatus.SUCCEEDED:
        headline = f"Completed by {task.holder}."
        return Diagnosis("done", "ok", headline, OVER, until=until, facts=facts)
    if task.status == TaskStatus.CANCELLED:
        by = f" by {task.cancel_requested_by}" if task.cancel_requested_by else ""
        parent = f" with its parent task:{task.parent_id}" if _is_with_parent(task) else ""
        code, severity, headline = "cancelled", "info", f"Cancelled{by}{parent}."
        next_ = OVER
    else:
        facts.append(("Last error", task.last_error))
        next_ = "Nothing until someone retries it."
        code, severity = "given_up", "critical"
        headline = "Failed: this error is never retried."
        if task.attempts >= task.max_attempts:
            code = "exhausted"
            headline = f"All {task.max_attempts} attempts failed."
            if task.max_attempts == 1:
                headline = "Its only attempt failed."
            if is_lost_with_worker(task.last_error):
                headline = f"Lost with its worker, after {plural(task.max_attempts, 'attempt')}."
    return Diagnosis(
        code, severity, headline, next_, until=until, facts=facts, actions=[RETRY, DISCARD]
    )


def _is_with_parent(task: Task) -> bool:
    return task.parent_id is not None and WITH_PARENT in task.last_error
