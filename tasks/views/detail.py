"""The page of one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from leasing.dashboard.forms import ForceReleaseForm
from leasing.web.access import is_live, may, page
from leasing.web.masking import masked
from leasing.web.polling import answer, page_or_first
from tasks.dashboard import listing
from tasks.dashboard.attempt_chart import drawing_of
from tasks.dashboard.badges import SEVERITY_BADGES, badge_of_task
from tasks.dashboard.exports import PAYLOAD, VIEW_PAYLOAD
from tasks.dashboard.forms import PageFilter
from tasks.dashboard.operator_actions import ACTIONS
from tasks.dashboard.timeline import timeline
from tasks.diagnosis import diagnose, look_around
from tasks.models import Task, TaskAttempt, TaskStatus

VIEW, REVOKE = "leasing_tasks.view_task", "leasing.revoke_lease"

#: Facts of a diagnosis that the page tells by itself, with times that tick.
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
    """One task: its diagnosis, its attempts, what it was given and what it gave back."""
    return detail(request, pk, {})


def detail(
    request: HttpRequest, pk: int, forms: Mapping[str, forms.Form], status: int = 200
) -> HttpResponse:
    """The page of a task, with the ``forms`` that were filled in wrongly, by their verbs."""
    sees_payload = request.user.has_perm(VIEW_PAYLOAD)
    rows = listing.tasks().with_state().defer(*(() if sees_payload else UNSEEN))
    task = get_object_or_404(rows, pk=pk)
    now = task.now
    form = PageFilter(request.GET)
    rows = TaskAttempt.objects.using(task._state.db).filter(task=task)
    attempts = page_or_first(form, rows)
    history = timeline(task, now, attempts.rows, has_more=bool(attempts.older))
    context = {
        **_diagnosed(task, fresh=not is_live(request)),
        "form": form,
        "task": task,
        "now": now,
        "badge": badge_of_task(task, now),
        "attempts": attempts,
        "drawing": None if attempts.moved else drawing_of(task, history),
        "sees_payload": sees_payload,
        **{name: masked(getattr(task, name)) for name in PAYLOAD if sees_payload},
        "may_see_leases": request.user.has_perm("leasing.view_lease"),
        **_verbs(request, task, forms),
    }
    return answer(request, "leasing_tasks/detail.html", context, status=status)


def _diagnosed(task: Task, *, fresh: bool) -> dict[str, Any]:
    """Return the diagnosis of ``task``."""
    around = look_around([task], fresh=fresh)
    found = diagnose(task, around.now, around)
    return {
        "diagnosis": found,
        # The page of a task that waits is the only one that shows these words.
        "until": found.until if task.status == TaskStatus.READY else "",
        "severity": SEVERITY_BADGES[found.severity],
        "facts": [fact for fact in found.facts if fact[0] not in ON_PAGE],
    }


def _verbs(request: HttpRequest, task: Task, forms: Mapping[str, forms.Form]) -> dict[str, Any]:
    """Return the actions on the task, with those that the user may do."""
    fitting = [each for each in ACTIONS.values() if each.fits(task)]
    allowed = [verb for verb in fitting if may(request, verb.permission)]
    is_held = task.status == TaskStatus.RUNNING
    may_revoke = is_held and may(request, REVOKE)
    return {
        "verbs": [
            (verb, forms.get(verb.name) or verb.form_for(listing.tasks(), {})) for verb in allowed
        ],
        "may_revoke": may_revoke,
        "revoke_form": ForceReleaseForm(task.lease_resource),
        "has_forbidden": len(allowed) < len(fitting) or is_held and not may_revoke,
    }
