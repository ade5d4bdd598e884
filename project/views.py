"""Views of the demo alone: faults on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect

from leasing.web.access import View, verb
from project import faults
from project.services import LEASES
from tasks.conf import task_settings
from tasks.models import Task, Worker

MAY = "leasing_tasks.control_generator"


def demo(request: HttpRequest) -> dict[str, bool]:
    """Context of every template: whether the buttons for faults are there, and one for workers
    that have a parent. The workers of a task service alone are remote: no button finds them."""
    is_demo = faults.is_demo() and LEASES in settings.SERVICES
    return {"is_demo": is_demo, "has_children": not task_settings.CELERY_QUEUES}


def _in_the_demo(view: View) -> View:
    """``view``, which is nowhere but in the demo."""

    @functools.wraps(view)
    def in_the_demo(request: HttpRequest) -> HttpResponseBase:
        if not faults.is_demo():
            raise Http404("Only available in the demo.")
        return view(request)

    return in_the_demo


@_in_the_demo
@verb(MAY)
def crash(request: HttpRequest) -> HttpResponse:
    """Kill a worker, and show what becomes of a task that it held."""
    return _strike(
        request,
        faults.crash,
        "{} was killed (kill -9) and restarts in half a minute. When its leases expire, the other "
        "worker takes over its tasks. Watch one of them here.",
    )


@_in_the_demo
@verb(MAY)
def crash_child(request: HttpRequest) -> HttpResponse:
    """Kill a worker that has a parent, and show what becomes of a task that it held."""
    return _strike(
        request,
        faults.crash_child,
        "{} was killed (kill -9). Its parent hands back its tasks at once and starts another "
        "worker: no lease has to expire. Those that had begun run again after a pause. Watch "
        "one of them here.",
    )


@_in_the_demo
@verb(MAY)
def freeze(request: HttpRequest) -> HttpResponse:
    """Hold a worker up, and show what becomes of a task that it held."""
    return _strike(
        request,
        faults.freeze,
        f"{{}} is frozen (SIGSTOP) for {faults.FROZEN_FOR:.0f} seconds. When its leases expire, "
        "the other worker takes over its tasks, and late results are refused. Watch one here.",
    )


def _strike(
    request: HttpRequest, fault: Callable[[], tuple[Worker, list[Task]] | None], said: str
) -> HttpResponse:
    found = fault()
    if found is None:
        messages.warning(request, "No worker of this demo is running. Try again in a second.")
        return redirect("leasing_tasks:overview")
    worker, held = found
    messages.success(request, said.format(worker.name))
    return (
        redirect("leasing_tasks:detail", held[0].pk)
        if held
        else redirect("leasing_tasks:worker", worker.pk)
    )
