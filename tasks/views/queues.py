"""The operator's page about queues: what waits where, pause and resume."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from leasing import audit
from leasing.web.access import is_live, may, page, report, user_name, verb
from leasing.web.polling import answer, shared_reading
from tasks.dashboard.forms import PauseQueueForm, ResumeQueueForm
from tasks.dashboard.queue_rows import read_queues
from tasks.exceptions import UnknownQueue
from tasks.models import Queue

VIEW, PAUSE = "leasing_tasks.view_queue", "leasing_tasks.pause_queue"


@page(VIEW)
def queues(request: HttpRequest) -> HttpResponse:
    """Queues: how much waits and for how long, what runs, who stopped it and why."""
    return _queues(request)


@verb(PAUSE)
def pause(request: HttpRequest) -> HttpResponse:
    """Pause a queue: none of its tasks is claimed from now on."""
    form = PauseQueueForm(request.POST)
    if not form.is_valid():
        return _queues(request, form, status=400)
    name, reason = form.cleaned_data["queue"], form.cleaned_data["reason"]
    paused = False
    with audit.recording(
        request.user, "pause", Queue, keys=[name], reason=reason, via="page"
    ) as act:
        try:
            paused = Queue.objects.pause(name, by=user_name(request), reason=reason)
        except UnknownQueue as error:
            form.add_error("queue", str(error))
        act.changed = int(paused)
    if form.errors:
        return _queues(request, form, status=400)
    report(
        request,
        paused,
        f"The queue {name} is paused. Running tasks continue.",
        f"Nothing changed: the queue {name} is already paused.",
    )
    return redirect("leasing_tasks:queues")


@verb(PAUSE)
def resume(request: HttpRequest) -> HttpResponse:
    """Resume a queue, so that its tasks are claimed again."""
    form = ResumeQueueForm(request.POST)
    if not form.is_valid():
        return _queues(request, status=400)
    name = form.cleaned_data["queue"]
    with audit.recording(request.user, "resume", Queue, keys=[name], via="page") as act:
        act.changed = int(Queue.objects.resume(name, by=user_name(request)))
    report(
        request,
        act.changed,
        f"The queue {name} is resumed.",
        f"Nothing changed: the queue {name} is not paused.",
    )
    return redirect("leasing_tasks:queues")


def _queues(
    request: HttpRequest, form: PauseQueueForm | None = None, status: int = 200
) -> HttpResponse:
    fresh = not is_live(request)
    reading = shared_reading(request, lambda now: {"queues": read_queues(fresh=fresh)})
    context: dict[str, Any] = {
        "form": form or PauseQueueForm(),
        "failed_queue": form.data.get("queue") if form else None,
        "may_pause": may(request, PAUSE),
        "may_see_tasks": request.user.has_perm("leasing_tasks.view_task"),
    }
    return answer(request, "leasing_tasks/queues.html", context, reading, status)
