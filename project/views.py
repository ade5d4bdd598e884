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


def _striking(fault: Callable[[], tuple[Worker, list[Task]] | None], said: str) -> View:
    """Return a view, which is nowhere but in the demo, that causes ``fault`` and shows what becomes
    of a task that the worker held. ``said`` has a place for the worker's name."""

    @verb(MAY)
    def strike(request: HttpRequest) -> HttpResponse:
        found = fault()
        if found is None:
            messages.warning(request, "No worker of this demo is running. Try again in a second.")
            return redirect("leasing_tasks:overview")
        worker, held = found
        messages.success(request, said.format(worker.name))
        if held:
            return redirect("leasing_tasks:detail", held[0].pk)
        return redirect("leasing_tasks:worker", worker.pk)

    @functools.wraps(strike)
    def in_the_demo(request: HttpRequest) -> HttpResponseBase:
        if not faults.is_demo():
            raise Http404("Only available in the demo.")
        return strike(request)

    return in_the_demo


crash = _striking(
    faults.crash,
    "{} was killed (kill -9) and restarts in half a minute. When its leases expire, the other "
    "worker takes over its tasks. Watch one of them here.",
)
crash_child = _striking(
    faults.crash_child,
    "{} was killed (kill -9). Its parent hands back its tasks at once and starts another worker: "
    "no lease has to expire. Those that had begun run again after a pause. Watch one of them here.",
)
freeze = _striking(
    faults.freeze,
    f"{{}} is frozen (SIGSTOP) for {faults.FROZEN_FOR:.0f} seconds. When its leases expire, the "
    "other worker takes over its tasks, and late results are refused. Watch one here.",
)
