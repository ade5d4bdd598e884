"""The page of one task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse

from leasing.dashboard.forms import ForceReleaseForm
from leasing.web import navigation
from leasing.web.access import is_live, may, page
from leasing.web.cursors import Cursor
from leasing.web.masking import masked
from leasing.web.paging import page_of
from leasing.web.polling import answer, read_or_first
from tasks.dashboard import listing
from tasks.dashboard.attempt_chart import drawing_of
from tasks.dashboard.badges import SEVERITY_BADGES, badge_of_task
from tasks.dashboard.exports import PAYLOAD, VIEW_PAYLOAD
from tasks.dashboard.forms import PageFilter
from tasks.dashboard.operator_actions import ACTIONS, with_bonds
from tasks.dashboard.timeline import timeline
from tasks.diagnosis import explain
from tasks.diagnosis.trace import read_trace
from tasks.models import Task, TaskAttempt, TaskStatus

VIEW, REVOKE = "leasing_tasks.view_task", "leasing.revoke_lease"
VIEW_AUDIT, VIEW_WORKER = "leasing.view_auditentry", "leasing_tasks.view_worker"
#: The newest rows of each table of which the page shows the events.
TRACED = 50

#: Facts of a diagnosis that the page shows by itself, with times that tick.
ON_PAGE = {
    "Held by",
    "Since",
    "Last heartbeat",
    "Until",
    "Attempts",
    "Last error",
    "Ended",
    "Not before",
    "Due for",
}


#: Columns that are not even read for users who may not see them; the numbers of a progress are for
#: all.
UNSEEN = ("task_data", "task_output", "checkpoint")


@page(VIEW)
def task_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One task: its diagnosis, its attempts, its arguments and its result."""
    return detail(request, pk, {})


def detail(
    request: HttpRequest, pk: int, forms: Mapping[str, forms.Form], status: int = 200
) -> HttpResponse:
    """Return the page of a task.

    Args:
        request: The user's request.
        pk: The key of the task.
        forms: Invalid forms, by the names of their actions.
        status: The HTTP status.
    """
    sees_payload, sees_audit, sees_workers = sees = [
        request.user.has_perm(each) for each in (VIEW_PAYLOAD, VIEW_AUDIT, VIEW_WORKER)
    ]
    rows = with_bonds(listing.tasks().with_state().defer(*(() if sees_payload else UNSEEN)))
    form = PageFilter(request.GET)

    def read(now: datetime, cursor: Cursor | None) -> dict[str, Any]:
        task = listing.find(rows, pk)
        attempts = page_of(TaskAttempt.objects.using(rows.db).filter(task=task), cursor)
        history = timeline(task, now, attempts.rows, has_more=bool(attempts.older))
        return {
            **_diagnosed(task, now, fresh=not is_live(request)),
            "task": task,
            "holder_url": navigation.holder_url(task.holder) if sees_workers else "",
            "badge": badge_of_task(task, now),
            "attempts": attempts,
            "children": listing.children_of(task),
            "trace": []
            if attempts.moved
            else read_trace(task, with_actions=sees_audit, attempts=attempts.rows, limit=TRACED),
            "drawing": None if attempts.moved else drawing_of(task, history),
            **{name: masked(getattr(task, name)) for name in PAYLOAD if sees_payload},
        }

    reading = read_or_first(request, form, read, apart=tuple(sees))
    context = {
        "form": form,
        "sees_payload": sees_payload,
        "may_see_leases": request.user.has_perm("leasing.view_lease"),
        "allowed": [name for name, each in ACTIONS.items() if may(request, each.permission)],
        "may_revoke": may(request, REVOKE),
    }
    return answer(
        request,
        "leasing_tasks/detail.html",
        context,
        reading,
        status,
        rest=lambda: _verbs(reading.context["task"], forms, context),
    )


def _diagnosed(task: Task, now: datetime, *, fresh: bool) -> dict[str, Any]:
    """Return the diagnosis of ``task``."""
    diagnosis = explain(task, now, fresh=fresh)
    return {
        "diagnosis": diagnosis,
        # The page of a task that waits is the only one that shows these words.
        "until": diagnosis.until if task.status == TaskStatus.READY else "",
        "severity": SEVERITY_BADGES[diagnosis.severity],
        "facts": [fact for fact in diagnosis.facts if fact[0] not in ON_PAGE],
    }


def _verbs(
    task: Task, forms: Mapping[str, forms.Form], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the actions that would change the task and that the user may do, and those that its
    state allows but that would change nothing, with the reason."""
    applicable = [each for each in ACTIONS.values() if each.is_applicable(task)]
    refusing = [each for each in ACTIONS.values() if task.status in each.statuses]
    allowed = [verb for verb in applicable if verb.name in context["allowed"]]
    is_held = task.status == TaskStatus.RUNNING
    may_revoke = is_held and context["may_revoke"]
    return {
        "verbs": [
            (verb, forms.get(verb.name) or verb.form_for(listing.tasks(), {})) for verb in allowed
        ],
        "refused": [(each.label, why) for each in refusing if (why := each.blocked_by(task, {}))],
        "may_revoke": may_revoke,
        "revoke_form": ForceReleaseForm(task.lease_resource),
        "has_forbidden": len(allowed) < len(applicable) or is_held and not may_revoke,
    }
