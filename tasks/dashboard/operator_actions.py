"""Actions of operators on tasks, one or many: the states to which each applies, and its
consequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.http import HttpRequest

from leasing.dashboard.forms import ForceReleaseForm, ReasonForm
from leasing.dashboard.operator_actions import FormData, OperatorAction
from leasing.db.deletion import is_protected
from leasing.functions import database_now
from leasing.web.access import may
from tasks.dashboard.forms import CancelForm, RescheduleForm
from tasks.diagnosis import CANCEL, DISCARD, RESCHEDULE, RETRY, REVOKE
from tasks.models import Task, TaskStatus

#: Columns that decide whether an action applies to a task.
STANDING: Final = (
    *("pk", "status", "grants", "cancel_requested_at", "queue", "scheduled_at", "priority"),
    "compensation",
)

#: Names of states in reasons.
_IS: Final = {
    TaskStatus.READY: "waiting",
    TaskStatus.RUNNING: "running",
    TaskStatus.SUCCEEDED: "succeeded",
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELLED: "cancelled",
}


@dataclass(frozen=True, kw_only=True)
class TaskAction(OperatorAction):
    """An action of operators on tasks; ``consequence`` is about several tasks."""

    icon: str
    past: str
    consequence_of_one: str
    statuses: frozenset[str]
    #: The lists of ``tasks.dashboard.listing`` that offer it.
    lists: frozenset[str]
    is_grave: bool = False

    def annotated(self, rows: Any) -> Any:
        return with_bonds(rows.only(*STANDING).with_state())

    def skip_reason(self, row: Task, form_data: FormData) -> str:
        if row.status not in self.statuses:
            return _IS[TaskStatus(row.status)]
        return self.blocked_by(row, form_data)


def with_bonds(rows: Any) -> Any:
    """Return ``rows`` with the annotations that tell if a task can be retried or discarded."""
    return rows.annotate(
        is_without_its_key=rows.is_without_its_key(),
        is_bound=rows.is_bound_by_compensation(),
        is_needed=rows.is_needed_by_compensation(),
        is_protected=is_protected(Task),
    )


def _cancel_blocked_by(task: Task, form_data: FormData) -> str:
    return "already asked to stop" if task.cancel_requested_at else ""


def _retry_blocked_by(task: Any, form_data: FormData) -> str:
    if task.is_bound:
        void = "the task that it undoes was retried or deleted"
        return void if task.compensation == "" else "its compensation has not succeeded"
    return "unique key taken by another task" if task.is_without_its_key else ""


def _discard_blocked_by(task: Any, form_data: FormData) -> str:
    if task.is_needed:
        return f"it is {'undone by' if task.compensation else 'the undoing of'} another task"
    return "protected by a row that refers to it" if task.is_protected else ""


def _reschedule_blocked_by(task: Any, form_data: FormData) -> str:
    start = form_data.get("scheduled_at")
    if form_data.get("at_once"):
        is_timed = task.scheduled_at <= task.now
    else:
        is_timed = start is None or start == task.scheduled_at
    is_placed = not form_data.get("queue") or form_data["queue"] == task.queue
    is_ranked = form_data.get("priority") in (None, task.priority)
    return "already there" if form_data and is_timed and is_placed and is_ranked else ""


def _reschedule(rows: Any, form_data: FormData, by: str) -> int:
    start = database_now(rows.db) if form_data["at_once"] else form_data["scheduled_at"]
    queue, priority = form_data["queue"] or None, form_data["priority"]
    changed: int = rows.reschedule(queue=queue, scheduled_at=start, priority=priority, by=by)
    return changed


ACTIONS: Final[Mapping[str, TaskAction]] = {
    action.name: action
    for action in (
        TaskAction(
            "retry",
            "Retry",
            "Retried",
            "Retry these tasks?",
            "The tasks become ready now, with one extra attempt where all were used.",
            "leasing_tasks.retry_task",
            forms.Form,
            lambda rows, form_data, by: rows.retry(by=by),
            _retry_blocked_by,
            icon="retry",
            past="retried",
            consequence_of_one=RETRY.consequence,
            statuses=frozenset((TaskStatus.FAILED, TaskStatus.CANCELLED)),
            lists=frozenset(("all", "failed", "cancelled")),
        ),
        TaskAction(
            "reschedule",
            "Reschedule",
            "Rescheduled",
            "Reschedule these tasks?",
            "The tasks move to the chosen queue and start no earlier than the chosen time.",
            "leasing_tasks.reschedule_task",
            RescheduleForm,
            _reschedule,
            _reschedule_blocked_by,
            icon="clock",
            past="rescheduled",
            consequence_of_one=RESCHEDULE.consequence,
            statuses=frozenset((TaskStatus.READY,)),
            lists=frozenset(("all", "retrying", "ready", "scheduled")),
        ),
        TaskAction(
            "cancel",
            "Cancel",
            "Cancelled or asked to stop",
            "Cancel these tasks?",
            "Waiting tasks end immediately. Running tasks are asked to stop; a handler that never "
            "checks may still complete its task. None of them is retried either way. Their "
            "children are cancelled with them.",
            "leasing_tasks.cancel_task",
            CancelForm,
            lambda rows, form_data, by: rows.cancel(by=by, reason=form_data["reason"]),
            _cancel_blocked_by,
            icon="slash",
            past="cancelled",
            consequence_of_one=CANCEL.consequence,
            statuses=frozenset((TaskStatus.READY, TaskStatus.RUNNING)),
            lists=frozenset(("all", "stuck", "running", "retrying", "ready", "scheduled")),
            is_grave=True,
        ),
        TaskAction(
            "discard",
            "Discard",
            "Discarded",
            "Discard these tasks?",
            "The tasks are deleted with their payloads, results and attempts. This cannot be "
            "undone.",
            "leasing_tasks.discard_task",
            ReasonForm,
            lambda rows, form_data, by: rows.discard(by=by),
            _discard_blocked_by,
            deletes=True,
            icon="cross",
            past="discarded",
            consequence_of_one=DISCARD.consequence,
            statuses=frozenset(TaskStatus.ended()),
            lists=frozenset(("all", "failed", "succeeded", "cancelled")),
            is_grave=True,
        ),
    )
}


#: Revocation of leases, for the API and the admin; the pages have it on the pages of leases.
REVOCATION: Final = OperatorAction(
    "revoke",
    "Revoke leases",
    "Revoked",
    "Revoke the leases of these tasks?",
    REVOKE.consequence,
    REVOKE.permission,
    ForceReleaseForm,
    lambda rows, form_data, by: rows.revoke(reason=form_data["reason"], by=by),
    lambda task, form_data: "" if task.status == TaskStatus.RUNNING else "not running",
    of_one="Revoke lease",
)


def bulk_actions(request: HttpRequest, state: str) -> list[TaskAction]:
    """Return the actions on tasks of the list ``state`` that the user of ``request`` may do."""
    return [
        each for each in ACTIONS.values() if state in each.lists and may(request, each.permission)
    ]
