"""The operator's page about queues: their depths, pause and resume."""

from __future__ import annotations

from typing import Any

from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from leasing.web.access import check_may_see, is_live, may, page, report, verb
from leasing.web.polling import answer, shared_reading
from tasks.dashboard.forms import PauseQueueForm, QueueForm
from tasks.dashboard.queue_actions import QUEUE_ACTIONS
from tasks.dashboard.queue_rows import read_queues
from tasks.exceptions import UnknownQueue
from tasks.models import Queue

VIEW, PAUSE = "leasing_tasks.view_queue", "leasing_tasks.pause_queue"


@page(VIEW)
def queues(request: HttpRequest) -> HttpResponse:
    """Queues: what waits and for how long, what runs, and who paused a queue and why."""
    return _queues(request)


@verb(PAUSE)
def pause(request: HttpRequest) -> HttpResponse:
    """Pause a queue: none of its tasks is claimed from now on."""
    form = PauseQueueForm(request.POST)
    return _act(request, "pause", form, "paused. Running tasks continue") or _queues(
        request, form, status=400
    )


@verb(PAUSE)
def resume(request: HttpRequest) -> HttpResponse:
    """Resume a queue, so that its tasks are claimed again."""
    form = QueueForm(request.POST)
    return _act(request, "resume", form, "resumed") or _queues(request, status=400)


def _act(request: HttpRequest, name: str, form: Form, done: str) -> HttpResponse | None:
    """Do an action to the queue that ``form`` names. Returns None if that is not valid."""
    if not form.is_valid():
        check_may_see(request, VIEW, form)
        return None
    queue, action = form.cleaned_data["queue"], QUEUE_ACTIONS[name]
    try:
        rows = Queue.objects.known(queue)
    except UnknownQueue as error:
        form.add_error("queue", str(error))
        check_may_see(request, VIEW, form)
        return None
    outcome = action.perform(rows, {queue: None}, form.cleaned_data, user=request.user, via="page")
    why = next(iter(outcome.skipped), "")
    otherwise = f"Nothing changed: the queue {queue} is {why}."
    report(request, outcome.changed, f"The queue {queue} is {done}.", otherwise)
    return redirect("leasing_tasks:queues")


def _queues(
    request: HttpRequest, form: PauseQueueForm | None = None, status: int = 200
) -> HttpResponse:
    fresh = not is_live(request)
    reading = shared_reading(request, lambda now: {"queues": read_queues(now=now, fresh=fresh)})
    context: dict[str, Any] = {
        "form": form or PauseQueueForm(),
        "failed_queue": form.data.get("queue") if form else None,
        "may_pause": may(request, PAUSE),
        "may_see_tasks": request.user.has_perm("leasing_tasks.view_task"),
    }
    return answer(request, "leasing_tasks/queues.html", context, reading, status)
