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

VIEW, TEMPLATE = "leasing_tasks.view_task", "leasing_tasks/keys.html"


@page(VIEW)
def key_list(request: HttpRequest) -> HttpResponse:
    """Keys that are open or perhaps done twice, or all, the newest first."""
    form = KeyFilter(request.GET)
    sources = _sources(request)

    def read(now: datetime) -> dict[str, Any]:
        wanted = form.cleaned_data
        search = reconciliation.LISTS[wanted["state"]] or None
        return {
            "filter": wanted,
            "address": urlencode({"state": wanted["state"], "q": wanted["q"]}),
            "sections": [
                (
                    title,
                    found,
                    [(row, reconciliation.BADGES.get(row.finding)) for row in found.rows],
                )
                for title, rows in sources.items()
                for found in [
                    page_of(
                        reconciliation.wanted_of(rows, wanted["q"]), wanted["at"], search=search
                    )
                ]
            ],
        }

    def count() -> dict[str, Any]:
        counts = reconciliation.counts(sources.values(), form.cleaned_data["q"])
        current = form.cleaned_data["state"]
        return {
            "tabs": [
                {
                    "state": name,
                    "label": label,
                    "count": counts[name],
                    "is_current": name == current,
                }
                for name, label in KeyFilter.STATES
            ]
        }

    reading = read_list(request, form, read, count, apart=len(sources))
    return answer(request, TEMPLATE, {"form": form}, reading)


@page(VIEW)
def key_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The keys of the list as a file, by the same filter."""
    asked = KeyFilter(request.GET)
    if not asked.is_valid():
        return answer(request, TEMPLATE, {"form": asked})
    wanted = asked.cleaned_data
    search = reconciliation.LISTS[wanted["state"]] or None
    chunks = chain.from_iterable(
        chunks_of(reconciliation.wanted_of(rows, wanted["q"]), search=search)
        for rows in _sources(request).values()
    )
    return export(request, chunks, reconciliation.KEYS, form, f"keys-{wanted['state']}")


def _sources(request: HttpRequest) -> dict[str, Any]:
    """Return the keys that the user may see, by the titles of their lists."""
    sources = {"Keys of enqueues": reconciliation.enqueued()}
    if request.user.has_perm("leasing.view_lease"):
        sources["Keys of once"] = reconciliation.done_once()
    return sources
