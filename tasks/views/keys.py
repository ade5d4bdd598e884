"""The operator's page about keys: of enqueues, and of ``once``."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from leasing.web.access import page
from leasing.web.export import export
from leasing.web.paging import chunks_of, page_of
from leasing.web.polling import answer, read_list
from tasks.dashboard import reconciliation
from tasks.dashboard.forms import KeyFilter

VIEW, VIEW_ONCE = "leasing_tasks.view_task", "leasing.view_lease"
TEMPLATE = "leasing_tasks/keys.html"


@page(VIEW)
def key_list(request: HttpRequest) -> HttpResponse:
    """Keys that are open or perhaps done twice, or all keys, the newest first."""
    form = KeyFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        filters = form.cleaned_data
        search = reconciliation.LISTS[filters["state"]] or None
        sections = []
        for title, rows in _sources(request, filters["q"]).items():
            keys = page_of(rows, filters["at"], search=search)
            badged = [(row, reconciliation.BADGES.get(row.finding)) for row in keys.rows]
            sections.append((title, keys, badged))
        address = urlencode({"state": filters["state"], "q": filters["q"]})
        return {"filter": filters, "address": address, "sections": sections}

    def count() -> dict[str, Any]:
        filters = form.cleaned_data
        counts = reconciliation.counts(_sources(request, filters["q"]).values())
        tabs = [
            {
                "state": name,
                "label": label,
                "count": counts[name],
                "is_current": name == filters["state"],
            }
            for name, label in KeyFilter.STATES
        ]
        return {"tabs": tabs}

    reading = read_list(request, form, read, count, apart=request.user.has_perm(VIEW_ONCE))
    return answer(request, TEMPLATE, {"form": form}, reading)


@page(VIEW)
def key_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The keys of the list as a file, by the same filter."""
    filter_form = KeyFilter(request.GET)
    if not filter_form.is_valid():
        return answer(request, TEMPLATE, {"form": filter_form})
    filters = filter_form.cleaned_data
    search = reconciliation.LISTS[filters["state"]] or None
    sources = _sources(request, filters["q"]).values()
    chunks = chain.from_iterable(chunks_of(rows, search=search) for rows in sources)
    return export(request, chunks, reconciliation.KEYS, form, f"keys-{filters['state']}")


def _sources(request: HttpRequest, key: str) -> dict[str, Any]:
    """Return the keys that the user may see, by the titles of their lists: of ``key`` alone unless
    that is empty."""
    sources = {"Keys of enqueues": reconciliation.enqueued()}
    if request.user.has_perm(VIEW_ONCE):
        sources["Keys of once"] = reconciliation.done_once()
    return {title: rows.filter(key=key) if key else rows for title, rows in sources.items()}
