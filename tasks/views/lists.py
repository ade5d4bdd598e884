"""The operator's lists of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from leasing.dashboard.operator_actions import MAX_SELECTED
from leasing.web.access import is_live, page
from leasing.web.export import export
from leasing.web.paging import chunks_of, page_of
from leasing.web.polling import answer, read_list
from tasks.dashboard import listing, recovered
from tasks.dashboard.exports import RECOVERED, TASKS, VIEW_PAYLOAD
from tasks.dashboard.forms import TaskFilter, TaskSearch
from tasks.dashboard.operator_actions import bulk_actions
from tasks.dashboard.selection import filter_parameters
from tasks.diagnosis import diagnose, read_context

VIEW = "leasing_tasks.view_task"


@page(VIEW)
def task_list(request: HttpRequest) -> HttpResponse:
    """Tasks by state, in the order in which that state is of interest."""
    form = TaskFilter(request.GET)
    if sees_payload := request.user.has_perm(VIEW_PAYLOAD):
        form.fields["q"].label = "ID, start of name, or argument"

    def read(now: datetime) -> dict[str, Any]:
        filters, parameters = form.cleaned_data, filter_parameters(form.data)
        state = listing.STATES[filters["state"]]
        rows = listing.listed(state.name, filters, sees_payload=sees_payload)
        search = listing.search_of(filters, sees_payload=sees_payload)
        return {
            "state": state,
            "filters": _filter_chips(form, ("state", *listing.FILTERS)),
            "address": urlencode(parameters),
            "parameters": parameters,
            "most": MAX_SELECTED,
            "page": page_of(rows, filters["at"], order=state.order, search=search),
        }

    def count() -> dict[str, Any]:
        return {"tabs": _tabs(form.cleaned_data, sees_payload)}

    reading = read_list(request, form, read, count, apart=sees_payload)
    verbs = bulk_actions(request, form.cleaned_data["state"]) if reading else []
    context = {"form": form, "verbs": verbs, "sees_payload": sees_payload}
    return answer(request, "leasing_tasks/list.html", context, reading)


@page(VIEW)
def task_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The tasks of a list as a file, by the same filter and in the same order."""
    filter_form = TaskFilter(request.GET)
    if not filter_form.is_valid():
        return answer(request, "leasing_tasks/list.html", {"form": filter_form})
    filters = filter_form.cleaned_data
    state = listing.STATES[filters["state"]]
    rows = listing.exported(state.name, filters, request.user)
    search = listing.search_of(filters, sees_payload=request.user.has_perm(VIEW_PAYLOAD))
    chunks = chunks_of(rows, state.order, search)
    return export(request, chunks, TASKS, form, f"tasks-{state.name}")


@page(VIEW)
def stuck(request: HttpRequest) -> HttpResponse:
    """Tasks whose holder let a deadline pass: the holder, the delay, the next step. Below them the
    recent recoveries: the former holder, the reason, the result."""
    form = TaskSearch(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        filters = form.cleaned_data
        parameters = filter_parameters(form.data, listing.FILTERS)
        search = listing.columns_search(filters)
        stuck_page = page_of(listing.diagnosed(filters), filters["at"], search=search)
        recovered_page = page_of(
            recovered.listed(filters), filters["at"], search=recovered.search_of(filters)
        )
        context = read_context(stuck_page.rows, now, fresh=not is_live(request))
        diagnosed = [(task, diagnose(task, now, context)) for task in stuck_page.rows]
        return {
            "filters": _filter_chips(form, listing.FILTERS),
            "address": urlencode(parameters),
            "parameters": parameters,
            "page": stuck_page,
            "diagnosed": diagnosed,
            "recovered_page": recovered_page,
            # Each with its task, for the fingerprint: it does not look behind foreign keys.
            "recoveries": [(each, each.task, recovered.why(each)) for each in recovered_page.rows],
        }

    return answer(
        request, "leasing_tasks/stuck.html", {"form": form}, read_list(request, form, read)
    )


@page(VIEW)
def recovered_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The recoveries as a file, by the same filter and in the same order."""
    filter_form = TaskSearch(request.GET)
    if not filter_form.is_valid():
        return answer(request, "leasing_tasks/stuck.html", {"form": filter_form})
    filters = filter_form.cleaned_data
    chunks = chunks_of(recovered.exported(filters), search=recovered.search_of(filters))
    return export(request, chunks, RECOVERED, form, "recovered")


def _tabs(filters: dict[str, Any], sees_payload: bool) -> list[dict[str, Any]]:
    counts = listing.counts(filters, sees_payload=sees_payload)
    current = listing.STATES[filters["state"]]
    return [
        {
            "state": None if state.name == "all" else state.name,
            "label": state.label,
            "count": counts[state.name],
            "is_current": state is current,
        }
        for state in listing.STATES.values()
    ]


def _filter_chips(form: TaskSearch, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the filters of the list but its state: a label, the value, and the address with the
    parameters ``names`` except this one."""
    parameters = filter_parameters(form.data, names)
    labels = {name: form.fields[name].label or name.capitalize() for name in listing.FILTERS}
    return [
        {
            "label": str(labels[name]),
            "value": text.replace("T", " ") if name in ("since", "until") else text,
            "without": urlencode({k: v for k, v in parameters.items() if k != name}),
        }
        for name in listing.FILTERS
        if (text := parameters.get(name))
    ]
