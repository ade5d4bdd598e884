"""The operator's page about schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from leasing.web.access import check_may_see, may, page, report, verb
from leasing.web.paging import page_of
from leasing.web.polling import answer, read_list
from tasks.dashboard.forms import PageFilter
from tasks.dashboard.schedule_actions import CHANGE, SCHEDULE_ACTIONS
from tasks.dashboard.schedule_status import status_of
from tasks.models import Schedule

VIEW = "leasing_tasks.view_schedule"

#: The messages of a button: one if it has changed something, and one if it has not.
MESSAGES = {
    "pause": ("Schedule paused.", "Nothing changed: the schedule is already paused."),
    "resume": ("Schedule resumed.", "Nothing changed: the schedule is not paused."),
    "run_now": (
        "Task enqueued.",
        "Nothing enqueued: the previous task has not ended and overlap is off, or no handler is "
        "registered here.",
    ),
}


@page(VIEW)
def schedule_list(request: HttpRequest) -> HttpResponse:
    """Schedules, the newest first: when each is due, and the result of its last due time."""
    form = PageFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        shown = page_of(_rows().with_last().defer("task_data"), form.cleaned_data["at"])
        return {"page": shown, "schedules": [(each, status_of(each, now)) for each in shown.rows]}

    context = {
        "form": form,
        "may_change": may(request, CHANGE),
        "may_see_tasks": request.user.has_perm("leasing_tasks.view_task"),
    }
    reading = read_list(request, form, read)
    return answer(request, "leasing_tasks/schedules.html", context, reading)


@verb(CHANGE)
def act(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """Do an action to one schedule."""
    get_object_or_404(_rows().only("pk"), pk=pk)
    action, (done, otherwise) = SCHEDULE_ACTIONS[name], MESSAGES[name]
    form, changed = action.form(request.POST), 0
    if not form.is_valid():
        check_may_see(request, VIEW, form)
        report(request, 0, done, f"Nothing changed: {form.errors['reason'][0]}")
        return redirect("leasing_tasks:schedules")
    try:
        outcome = action.perform(
            _rows(), {pk: None}, form.cleaned_data, user=request.user, via="page"
        )
        changed = outcome.changed
    except action.refusals as error:
        otherwise = f"Nothing enqueued: {error}"
    report(request, changed, done, otherwise)
    return redirect("leasing_tasks:schedules")


def _rows() -> Any:
    return Schedule.objects.home()
