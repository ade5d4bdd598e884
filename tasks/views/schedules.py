"""The operator's page about schedules."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from leasing import audit
from leasing.web.access import may, page, report, user_name, verb
from leasing.web.paging import page_of
from leasing.web.polling import answer, read_list
from tasks.dashboard.forms import PageFilter
from tasks.dashboard.schedule_status import status_of
from tasks.exceptions import TaskError
from tasks.models import Schedule

VIEW, CHANGE = "leasing_tasks.view_schedule", "leasing_tasks.change_schedule"

#: The message of a button that changed nothing.
NOTHING = {
    "pause": "Nothing changed: the schedule is already paused.",
    "resume": "Nothing changed: the schedule is not paused.",
    "run": "Nothing enqueued: the previous task has not ended and overlap is off, or no handler "
    "is registered here.",
}


@page(VIEW)
def schedule_list(request: HttpRequest) -> HttpResponse:
    """Schedules, the newest first: when each is due, and the result of its last moment."""
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
def pause(request: HttpRequest, pk: int) -> HttpResponse:
    """Enqueue nothing of it from now on."""
    with _recorded(request, "pause", pk) as act:
        act.changed = _one(pk).pause(by=user_name(request))
    return _answer(request, act.changed, "Schedule paused.", NOTHING["pause"])


@verb(CHANGE)
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    """Go on with its next moment."""
    with _recorded(request, "resume", pk) as act:
        act.changed = _one(pk).resume()
    return _answer(request, act.changed, "Schedule resumed.", NOTHING["resume"])


@verb(CHANGE)
def run_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Enqueue its task once, outside of the plan."""
    try:
        with _recorded(request, "run", pk) as act:
            act.changed = _one(pk).run_now(by=user_name(request))
    except (TaskError, ValueError) as error:
        return _answer(request, 0, "", f"Nothing enqueued: {error}")
    return _answer(request, act.changed, "Task enqueued.", NOTHING["run"])


def _recorded(request: HttpRequest, verb: str, pk: int) -> AbstractContextManager[audit.Act]:
    get_object_or_404(_rows().only("pk"), pk=pk)
    return audit.recording(request.user, verb, Schedule, keys=[pk], via="page")


def _answer(request: HttpRequest, done: int, said: str, otherwise: str) -> HttpResponse:
    report(request, done, said, otherwise)
    return redirect("leasing_tasks:schedules")


def _rows() -> Any:
    return Schedule.objects.home()


def _one(pk: int) -> Any:
    return _rows().filter(pk=pk)
