"""The operator's lists of tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from leasing.dashboard.operator_actions import MAX_SELECTED
from leasing.web.access import is_live, page
from leasing.web.export import export
from leasing.web.paging import chunks_of, page_of
from leasing.web.polling import answer, read_list
from tasks.dashboard import listing
from tasks.dashboard.exports import TASKS
from tasks.dashboard.forms import PageFilter, TaskFilter
from tasks.dashboard.operator_actions import bulk_actions
from tasks.dashboard.selection import asked_for
from tasks.diagnosis import diagnose, look_around

VIEW = "leasing_tasks.view_task"


@page(VIEW)
def task_list(request: HttpRequest) -> HttpResponse:
    """Tasks by state, in the order in which that state is of interest."""
    form = TaskFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        wanted, asked = form.cleaned_data, asked_for(form.data)
        state, search = listing.STATES[wanted["state"]], listing.search_of(wanted)
        rows = listing.listed(state.name, wanted)
        return {
            "state": state,
            "filters": _filters(form),
            "address": urlencode(asked),
            "asked": asked,
            "most": MAX_SELECTED,
            "page": page_of(rows, wanted["at"], order=state.order, search=search),
        }

    reading = read_list(request, form, read, lambda: {"tabs": _tabs(form.cleaned_data)})
    verbs = bulk_actions(request, form.cleaned_data["state"]) if reading else []
    context = {"form": form, "verbs": verbs}
    return answer(request, "leasing_tasks/list.html", context, reading)


@page(VIEW)
def task_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The tasks of a list as a file, by the same filter and in the same order."""
    asked = TaskFilter(request.GET)
    if not asked.is_valid():
        return answer(request, "leasing_tasks/list.html", {"form": asked})
    wanted = asked.cleaned_data
    state = listing.STATES[wanted["state"]]
    rows = listing.exported(state.name, wanted, request.user)
    chunks = chunks_of(rows, state.order, listing.search_of(wanted))
    return export(request, chunks, TASKS, form, f"tasks-{state.name}")


@page(VIEW)
def stuck(request: HttpRequest) -> HttpResponse:
    """Tasks whose holder let a deadline pass: who, since when, what happens next."""
    form = PageFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        rows = page_of(listing.in_state("stuck").defer(*listing.LARGE), form.cleaned_data["at"])
        around = look_around(rows.rows, fresh=not is_live(request))
        diagnosed = [(task, diagnose(task, around.now, around)) for task in rows.rows]
        return {"page": rows, "diagnosed": diagnosed}

    return answer(
        request, "leasing_tasks/stuck.html", {"form": form}, read_list(request, form, read)
    )


def _tabs(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    counts = listing.counts(wanted)
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
    """Return the filters of the list besides its state: a label, the value, and the address without
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
