"""The operator's lists of leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from leasing.dashboard import lease_lists
from leasing.dashboard.exports import LEASES
from leasing.dashboard.forms import LeaseFilter
from leasing.web.access import page
from leasing.web.counts import Capped
from leasing.web.export import export
from leasing.web.polling import answer, read_list

VIEW, TEMPLATE = "leasing.view_lease", "leasing/list.html"


@page(VIEW)
def lease_list(request: HttpRequest) -> HttpResponse:
    """Leases by state: the named ones, then those of every other leasable model."""
    form = LeaseFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        wanted = form.cleaned_data
        return {
            "sections": _worth_showing(lease_lists.sections(wanted, wanted["at"])),
            "filter": wanted,
            "address": urlencode(_asked_for(wanted)),
            "renewed": "1" if wanted["renewed"] else None,
            "stores": lease_lists.other_stores(),
        }

    def count() -> dict[str, Any]:
        counts, renewed = lease_lists.counts(form.cleaned_data)
        return {"tabs": _tabs(form.cleaned_data, counts), "renewed_count": renewed}

    reading = read_list(request, form, read, count)
    return answer(request, TEMPLATE, {"form": form}, reading)


@page(VIEW)
def lease_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The leases of all sections as a file, by the same filter."""
    asked = LeaseFilter(request.GET)
    if not asked.is_valid():
        return answer(request, TEMPLATE, {"form": asked})
    wanted = asked.cleaned_data
    return export(request, lease_lists.exported(wanted), LEASES, form, f"leases-{wanted['state']}")


def _worth_showing(sections: list[lease_lists.Section]) -> list[lease_lists.Section]:
    """Return the sections that have rows, or more to look through; the first one where none has."""
    worth = [each for each in sections if each.page.rows or each.page.moved or each.page.older]
    return worth or sections[:1]


def _tabs(wanted: dict[str, Any], counts: dict[str, Capped]) -> list[dict[str, Any]]:
    return [
        {
            "state": None if state == lease_lists.ALL else state,
            "label": label,
            "count": counts[state],
            "is_current": state == wanted["state"],
        }
        for state, label in LeaseFilter.STATES
    ]


def _asked_for(wanted: dict[str, Any]) -> dict[str, str]:
    """Return the filter of the list for an address; without the cursor."""
    asked = {"state": wanted["state"], "q": wanted["q"], "renewed": "1" * wanted["renewed"]}
    return {name: text for name, text in asked.items() if text and text != lease_lists.ALL}
