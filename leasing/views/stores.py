"""The operator's page of leases that other stores keep than the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse

from leasing.dashboard.forms import StoreFilter
from leasing.dashboard.lease_lists import other_stores
from leasing.exceptions import StoreError
from leasing.stores import InvalidStore, stores
from leasing.web.access import page
from leasing.web.polling import answer, read_list

#: Leases that are shown, at most: a search finds the others.
SHOWN = 200


@page("leasing.view_lease")
def store_list(request: HttpRequest) -> HttpResponse:
    """Show who holds what in a store, by name."""
    form = StoreFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        aliases = other_stores()
        alias = form.cleaned_data["store"] or next(iter(aliases), "")
        return {"aliases": aliases, "alias": alias, **_held(alias, form.cleaned_data["q"])}

    return answer(request, "leasing/stores.html", {"form": form}, read_list(request, form, read))


def _held(alias: str, beginning: str) -> dict[str, Any]:
    """Return what the page shows of the store with ``alias``."""
    if not alias:
        return {}
    found: dict[str, Any] = {"beginning": beginning}
    try:
        found["place"] = str(stores[alias])
        held = stores.held(alias)
    except (InvalidStore, StoreError) as error:
        return found | {"problem": str(error)}
    if held is None:
        return found | {"problem": f"{found['place']} does not list its leases."}
    names = sorted(name for name in held if name.startswith(beginning))
    shown = [(name, held[name]) for name in names[:SHOWN]]
    return found | {"rows": shown, "number": len(names), "more": len(names) - len(shown)}
