"""The operator's lists of leases."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from leasing import lists
from leasing.access import page
from leasing.conf import leasing_settings
from leasing.exporting import export
from leasing.exports import LEASES
from leasing.forms import LeaseFilter
from leasing.functions import database_now
from leasing.live import answer
from leasing.models import leasable_models
from leasing.paging import InvalidCursor

VIEW = "leasing.view_lease"


@page(VIEW)
def lease_list(request: HttpRequest) -> HttpResponse:
    """Leases by state: the named ones, and beside them those of every other leasable model."""
    form = LeaseFilter(request.GET)
    context: dict[str, Any] = {"form": form, "filter": {}, "now": _now()}
    if form.is_valid():
        wanted = form.cleaned_data
        try:
            sections = [lists.section(m, wanted, wanted["at"]) for m in leasable_models()]
        except InvalidCursor:
            form.add_error("at", form.fields["at"].error_messages["invalid"])
        else:
            counts = lists.counts(wanted)
            context |= {
                "filter": wanted,
                "address": urlencode(_asked_for(wanted)),
                "sections": _worth_showing(sections),
                "tabs": _tabs(wanted, counts),
                "renewed_count": counts.renewed,
                "renewed": "1" if wanted["renewed"] else None,
            }
    return answer(request, "leasing/list.html", context, status=400 if form.errors else 200)


@page(VIEW)
def lease_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The leases of all sections as a file, by the same filter."""
    asked = LeaseFilter(request.GET)
    if not asked.is_valid():
        context = {"form": asked, "filter": {}, "now": _now()}
        return render(request, "leasing/list.html", context, status=400)
    wanted = asked.cleaned_data
    return export(request, lists.exported(wanted), LEASES, form, f"leases-{wanted['state']}")


def _worth_showing(sections: list[lists.Section]) -> list[lists.Section]:
    """Those that have rows, or more to look through; the first one where none has."""
    worth = [each for each in sections if each.page.rows or each.page.moved or each.page.older]
    return worth or sections[:1]


def _tabs(wanted: dict[str, Any], counts: lists.Counts) -> list[dict[str, Any]]:
    return [
        {
            "state": None if state == lists.ALL else state,
            "label": label,
            "count": counts.states[state],
            "is_current": state == wanted["state"],
        }
        for state, label in LeaseFilter.STATES
    ]


def _asked_for(wanted: dict[str, Any]) -> dict[str, str]:
    """What narrows the list, for an address; without the place in it."""
    asked = {"state": wanted["state"], "q": wanted["q"], "renewed": "1" * wanted["renewed"]}
    return {name: text for name, text in asked.items() if text and text != lists.ALL}


def _now() -> Any:
    return database_now(leasing_settings.DATABASE)
