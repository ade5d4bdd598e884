"""Diagnose tasks that have ended."""

from __future__ import annotations

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import plural
from tasks.diagnosis.actions import DISCARD, RETRY
from tasks.diagnosis.context import DiagnosisContext
from tasks.diagnosis.facts import attempt_facts, stamped
from tasks.models import Task
from tasks.querysets import TaskStatus
from tasks.querysets.base import UNDO_OPEN
from tasks.querysets.recovery import is_lost_with_worker
from tasks.querysets.transitions import WITH_PARENT

OVER = "The task has ended. Nothing else will happen."


def ended(task: Task, context: DiagnosisContext) -> Diagnosis:
    """Diagnose a task that succeeded, failed or was cancelled."""
    until = f"Ended at {stamped(task.processed_at)}."
    facts = [("Ended", stamped(task.processed_at)), *attempt_facts(task)]
    actions = [RETRY, DISCARD]
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
        undo = context.undoing.get(task.pk)
        next_ = _after_failure(task, undo)
        if undo is not None and undo.status in UNDO_OPEN:
            actions = []
        code, severity = "given_up", "critical"
        headline = "Failed: this error is never retried."
        if task.attempts >= task.max_attempts:
            code = "exhausted"
            headline = f"All {task.max_attempts} attempts failed."
            if task.max_attempts == 1:
                headline = "Its only attempt failed."
            if is_lost_with_worker(task.last_error):
                headline = f"Lost with its worker, after {plural(task.max_attempts, 'attempt')}."
    return Diagnosis(code, severity, headline, next_, until=until, facts=facts, actions=actions)


def _after_failure(task: Task, undo: Task | None) -> str:
    """Return what happens to a failed task, or to its effects."""
    if task.compensation == "":
        undone = f"task:{task.parent_id}" if task.parent_id else "a task that is gone"
        return f"What {undone} did is undone in part, until someone retries this task."
    if not task.compensation:
        return "Nothing until someone retries it."
    if undo is None:
        return f"Nothing until someone retries it. Its compensation {task.compensation} is gone."
    return f"task:{undo.pk} {_UNDO[TaskStatus(undo.status)]}"


_UNDO = {
    TaskStatus.READY: "will undo what it did. Until then it cannot be retried.",
    TaskStatus.RUNNING: "undoes what it did. Until then it cannot be retried.",
    TaskStatus.SUCCEEDED: "has undone what it did. A retry begins with the first step again.",
    TaskStatus.FAILED: "was to undo what it did, and failed. Until someone retries that task and "
    "it succeeds, this one cannot be retried.",
    TaskStatus.CANCELLED: "was to undo what it did, and was cancelled. A retry leaves out the "
    "steps that were done.",
}


def _is_with_parent(task: Task) -> bool:
    return task.parent_id is not None and WITH_PARENT in task.last_error
