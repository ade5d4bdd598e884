"""The operator's lists of tasks."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.web.access import is_live, page
from leasing.web.export import export
from leasing.web.paging import InvalidCursor, Page, chunks_of, glance_at, page_of
from leasing.web.polling import answer
from tasks.dashboard import listing
from tasks.dashboard.exports import TASKS
from tasks.dashboard.forms import PageFilter, TaskFilter
from tasks.dashboard.operator_actions import bulk_verbs
from tasks.dashboard.selection import MOST, asked_for
from tasks.diagnosis import diagnose, look_around
from tasks.models import Task

VIEW = "leasing_tasks.view_task"


@page(VIEW)
def task_list(request: HttpRequest) -> HttpResponse:
    """Tasks by state, in the order in which that state is of interest."""
    form = TaskFilter(request.GET)
    if not form.is_valid():
        return _answer(
            request, "leasing_tasks/list.html", {"form": form, "page": Page([]), "now": _now()}
        )
    wanted = form.cleaned_data
    state = listing.STATES[wanted["state"]]
    asked = asked_for(form.data)
    context: dict[str, Any] = {
        "form": form,
        "now": _now(),
        "state": state,
        "filters": _filters(form),
        "address": urlencode(asked),
        "asked": asked,
        "verbs": bulk_verbs(request, state.name),
        "most": MOST,
    }

    def tabs(anew: bool) -> dict[str, Any]:
        return {"tabs": _tabs(wanted, anew=anew)}

    def rows() -> dict[str, Any]:
        return {"page": _page(state, wanted)}

    try:
        if not is_live(request):
            return _answer(request, "leasing_tasks/list.html", context | rows(), shared=tabs)
        context["seen"] = _seen(state, wanted)
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        return _answer(request, "leasing_tasks/list.html", context | {"page": Page([])})
    return _answer(request, "leasing_tasks/list.html", context, shared=tabs, late=rows)


@page(VIEW)
def task_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The tasks of a list as a file, by the same filter and in the same order."""
    asked = TaskFilter(request.GET)
    if not asked.is_valid():
        return _answer(request, "leasing_tasks/list.html", {"form": asked, "now": _now()})
    wanted = asked.cleaned_data
    state = listing.STATES[wanted["state"]]
    rows = listing.exported(state.name, wanted, request.user)
    chunks = chunks_of(rows, state.order, listing.search_of(wanted))
    return export(request, chunks, TASKS, form, f"tasks-{state.name}")


@page(VIEW)
def stuck(request: HttpRequest) -> HttpResponse:
    """Tasks whose holder let a deadline pass: who, since when, what happens next."""
    form = PageFilter(request.GET)
    rows: Page[Task] = Page([])
    if form.is_valid():
        try:
            rows = page_of(listing.in_state("stuck").defer(*listing.LARGE), form.cleaned_data["at"])
        except InvalidCursor:
            form.add_error("at", form.fields["at"].error_messages["invalid"])
    around = look_around(rows.rows)
    diagnosed = [(task, diagnose(task, around.now, around)) for task in rows.rows]
    context = {"form": form, "page": rows, "diagnosed": diagnosed, "now": around.now}
    return _answer(request, "leasing_tasks/stuck.html", context)


def _seen(state: listing.State, wanted: dict[str, Any]) -> object:
    """What tells whether ``_page`` would bring another page than before. Raises InvalidCursor."""
    rows = partial(listing.listed, state.name, wanted)
    columns, search = listing.columns(state.name), listing.search_of(wanted)
    key = None if wanted["q"] else (Task, state.name)
    return glance_at(rows, columns, wanted["at"], state.order, search, key)


def _page(state: listing.State, wanted: dict[str, Any]) -> Page[Task]:
    rows, search = listing.listed(state.name, wanted), listing.search_of(wanted)
    return page_of(rows, wanted["at"], order=state.order, search=search)


def _tabs(wanted: dict[str, Any], *, anew: bool) -> list[dict[str, Any]]:
    counts = listing.counts(wanted, anew=anew)
    current = listing.STATES[wanted["state"]]
    return [
        {
            "state": None if state.name == "all" else state.name,
            "label": state.label,
            "count": counts[state.name],
            "is_current": state.name in (current.name, current.within),
        }
        for state in listing.TABS
    ]


def _filters(form: TaskFilter) -> list[dict[str, str]]:
    """What narrows the list beside its state: a label, what was given, and the address without
    it."""
    asked = asked_for(form.data)
    labels = {name: form.fields[name].label or name.capitalize() for name in listing.FILTERS}
    return [
        {
            "label": str(labels[name]),
            "value": asked[name].replace("T", " ") if name in ("since", "until") else asked[name],
            "without": urlencode({k: v for k, v in asked.items() if k != name}),
        }
        for name in listing.FILTERS
        if name in asked
    ]


def _answer(
    request: HttpRequest, template: str, context: dict[str, Any], **more: Any
) -> HttpResponse:
    status = 400 if context["form"].errors else 200
    return answer(request, template, context, status, **more)


def _now() -> Any:
    return database_now(leasing_settings.DATABASE)
