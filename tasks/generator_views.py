"""The operator's page about the generator."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from leasing.access import page, user_name, verb
from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.live import answer
from tasks.forms import StartGeneratorForm, StopGeneratorForm
from tasks.generator import generator_status, start_generator, stop_generator
from tasks.models import Worker
from tasks.signs import GENERATOR_SIGNS

VIEW, CONTROL = "tasks.view_task", "tasks.control_generator"

#: More instances than this are not listed.
INSTANCES_SHOWN = 20


@page(VIEW)
def generator(request: HttpRequest) -> HttpResponse:
    """What is wished of the generator, what it does, who stands by, and who has heard."""
    return _generator(request, StartGeneratorForm(), StopGeneratorForm())


@verb(CONTROL)
def generator_start(request: HttpRequest) -> HttpResponse:
    """Wish that tasks are generated."""
    form = StartGeneratorForm(request.POST)
    if not form.is_valid():
        return _generator(request, form, StopGeneratorForm(), status=400)
    start_generator(by=user_name(request), reason=form.cleaned_data["reason"])
    return redirect("tasks:generator")


@verb(CONTROL)
def generator_stop(request: HttpRequest) -> HttpResponse:
    """Wish that no more tasks are generated."""
    form = StopGeneratorForm(request.POST)
    if not form.is_valid():
        return _generator(request, StartGeneratorForm(), form, status=400)
    stop_generator(by=user_name(request), reason=form.cleaned_data["reason"])
    return redirect("tasks:generator")


def _generator(
    request: HttpRequest, start: StartGeneratorForm, stop: StopGeneratorForm, status: int = 200
) -> HttpResponse:
    using = leasing_settings.DATABASE
    seen = generator_status()
    instances = Worker.objects.using(using).present().generators().with_state().order_by("name")
    context = {
        "status": seen,
        "sign": GENERATOR_SIGNS[seen.status],
        "lease": seen.lease,
        "standby": _standby(list(instances[:INSTANCES_SHOWN]), seen.holder),
        "start_form": start,
        "stop_form": stop,
        "may_control": request.user.has_perm(CONTROL),
        "may_see_leases": request.user.has_perm("leasing.view_lease"),
        "may_see_workers": request.user.has_perm("tasks.view_worker"),
        "now": database_now(using),
    }
    return answer(request, "tasks/generator.html", context, status=status)


def _standby(instances: list[Worker], holder: str) -> list[Worker]:
    return [instance for instance in instances if instance.name != holder]
