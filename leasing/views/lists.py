"""The operator's lists of leases."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from leasing.conf import leasing_settings
from leasing.dashboard import lease_lists
from leasing.dashboard.exports import LEASES
from leasing.dashboard.forms import LeaseFilter
from leasing.functions import database_now
from leasing.models import leasable_models
from leasing.web.access import is_live, page
from leasing.web.export import export
from leasing.web.paging import InvalidCursor
from leasing.web.polling import answer

VIEW = "leasing.view_lease"


@page(VIEW)
def lease_list(request: HttpRequest) -> HttpResponse:
    """Leases by state: the named ones, and beside them those of every other leasable model."""
    form = LeaseFilter(request.GET)
    context: dict[str, Any] = {"form": form, "filter": {}, "now": _now()}
    if not form.is_valid():
        return answer(request, "leasing/list.html", context, status=400)
    wanted = form.cleaned_data

    def rows() -> dict[str, Any]:
        sections = [lease_lists.section(model, wanted, wanted["at"]) for model in leasable_models()]
        return {"sections": _worth_showing(sections)}

    def tabs(anew: bool) -> dict[str, Any]:
        counts = lease_lists.counts(wanted, anew=anew)
        return {"tabs": _tabs(wanted, counts), "renewed_count": counts.renewed}

    shown = {
        "filter": wanted,
        "address": urlencode(_asked_for(wanted)),
        "renewed": "1" if wanted["renewed"] else None,
    }
    try:
        if not is_live(request):
            return answer(request, "leasing/list.html", context | shown | rows(), shared=tabs)
        seen = [lease_lists.seen(model, wanted, wanted["at"]) for model in leasable_models()]
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        return answer(request, "leasing/list.html", context, status=400)
    context |= shown | {"seen": seen}
    return answer(request, "leasing/list.html", context, shared=tabs, late=rows)


@page(VIEW)
def lease_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The leases of all sections as a file, by the same filter."""
    asked = LeaseFilter(request.GET)
    if not asked.is_valid():
        context = {"form": asked, "filter": {}, "now": _now()}
        return render(request, "leasing/list.html", context, status=400)
    wanted = asked.cleaned_data
    return export(request, lease_lists.exported(wanted), LEASES, form, f"leases-{wanted['state']}")


def _worth_showing(sections: list[lease_lists.Section]) -> list[lease_lists.Section]:
    """Those that have rows, or more to look through; the first one where none has."""
    worth = [each for each in sections if each.page.rows or each.page.moved or each.page.older]
    return worth or sections[:1]


def _tabs(wanted: dict[str, Any], counts: lease_lists.Counts) -> list[dict[str, Any]]:
    return [
        {
            "state": None if state == lease_lists.ALL else state,
            "label": label,
            "count": counts.states[state],
            "is_current": state == wanted["state"],
        }
        for state, label in LeaseFilter.STATES
    ]


def _asked_for(wanted: dict[str, Any]) -> dict[str, str]:
    """What narrows the list, for an address; without the place in it."""
    asked = {"state": wanted["state"], "q": wanted["q"], "renewed": "1" * wanted["renewed"]}
    return {name: text for name, text in asked.items() if text and text != lease_lists.ALL}


def _now() -> Any:
    return database_now(leasing_settings.DATABASE)
