"""The operator's overview, and the pages about workers and the generator."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from leasing.access import page, user_name, verb
from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.paging import InvalidCursor, Page, capped_count, page_of
from tasks import crew
from tasks import overview as overview_page
from tasks.forms import (
    StartGeneratorForm,
    StopGeneratorForm,
    WorkerFilter,
)
from tasks.generator import generator_status, start_generator, stop_generator
from tasks.models import Worker
from tasks.signs import GENERATOR_SIGNS

VIEW = "tasks.view_task"
VIEW_WORKERS, CONTROL = "tasks.view_worker", "tasks.control_generator"


@page(VIEW)
def overview(request: HttpRequest) -> HttpResponse:
    """Is all well, what needs you, who works, what was leased lately."""
    return render(request, "tasks/overview.html", overview_page.read(request))


@page(VIEW_WORKERS)
def workers(request: HttpRequest) -> HttpResponse:
    """Workers, and what each of them does now."""
    form = WorkerFilter(request.GET)
    shown: Page[Worker] = Page([])
    tabs: list[dict[str, Any]] = []
    if form.is_valid():
        state = form.cleaned_data["state"]
        shown = _page(form, _workers(state))
        tabs = [
            _tab(form, value, label, capped_count(_workers(value)))
            for value, label in WorkerFilter.STATES
        ]
    context = {
        "form": form,
        "tabs": tabs,
        "page": shown,
        "members": crew.with_tasks(shown.rows),
        "now": _now(),
    }
    return _answer(request, "tasks/workers.html", context)


@page(VIEW)
def generator(request: HttpRequest) -> HttpResponse:
    """What is wished of the generator, what it does, and whether it has heard."""
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
    seen = generator_status()
    context = {
        "status": seen,
        "sign": GENERATOR_SIGNS[seen.status],
        "lease": seen.lease,
        "start_form": start,
        "stop_form": stop,
        "may_control": request.user.has_perm(CONTROL),
        "may_see_leases": request.user.has_perm("leasing.view_lease"),
        "now": _now(),
    }
    return render(request, "tasks/generator.html", context, status=status)


def _answer(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    return render(request, template, context, status=400 if context["form"].errors else 200)


def _page(form: Any, rows: Any) -> Page[Any]:
    """The page of ``rows`` that ``form`` asks for; none when it asks for nonsense."""
    try:
        return page_of(rows, form.cleaned_data.get("at"))
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        return Page([])


def _tab(form: Any, state: str, label: str, count: object) -> dict[str, Any]:
    is_default = state == form.STATES[0][0]
    return {
        "state": None if is_default else state,
        "label": label,
        "count": count,
        "is_current": form.cleaned_data["state"] == state,
    }


def _workers(state: str) -> Any:
    rows: Any = Worker.objects.using(leasing_settings.DATABASE)
    if state == "present":
        return rows.present().with_state()
    return rows.with_state().filter(state=state)


def _now() -> datetime:
    return database_now(leasing_settings.DATABASE)
