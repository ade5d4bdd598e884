"""The operator's page about what operators did."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from leasing.conf import leasing_settings
from leasing.dashboard.exports import AUDIT
from leasing.dashboard.forms import AuditFilter
from leasing.models import AuditEntry
from leasing.web import navigation
from leasing.web.access import page
from leasing.web.badges import badge_of_entry
from leasing.web.export import export
from leasing.web.paging import page_of
from leasing.web.polling import answer, read_list

VIEW = "leasing.view_auditentry"

#: Keys of one action that are shown.
KEYS_SHOWN = 5
FILTERS = ("by", "verb", "model", "key")


@page(VIEW)
def audit_list(request: HttpRequest) -> HttpResponse:
    """List the actions of operators, the latest first: actor, verb, reason and number of rows."""
    form = AuditFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        shown = page_of(_asked_for(form), form.cleaned_data["at"])
        return {
            "page": shown,
            "address": urlencode({name: form[name].data for name in FILTERS if form[name].data}),
            "deeds": [_deed(entry) for entry in shown.rows],
            "filter": form.cleaned_data,
        }

    return answer(request, "leasing/audit.html", {"form": form}, read_list(request, form, read))


@page(VIEW)
def audit_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """All entries that the filter lets by, as a file."""
    asked = AuditFilter(request.GET)
    if not asked.is_valid():
        return answer(request, "leasing/audit.html", {"form": asked})
    return export(request, _asked_for(asked), AUDIT, form, "audit")


def _asked_for(form: AuditFilter) -> Any:
    """The entries that a valid ``form`` asks for."""
    wanted = {name: form.cleaned_data[name] for name in FILTERS}
    entries = AuditEntry.objects.using(leasing_settings.DATABASE)
    return entries.filter(**{name: value for name, value in wanted.items() if value})


def _kind(label: str) -> str:
    try:
        return str(apps.get_model(label)._meta.verbose_name_plural)
    except (LookupError, ValueError):  # of an app that is gone
        return label


def _deed(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry as the page shows it: its rows and its result."""
    target = entry.target if isinstance(entry.target, dict) else {}
    keys = [str(key) for key in target.get("keys") or ()] or [entry.key] * bool(entry.key)
    shown = [
        (navigation.name_of(entry.model, entry.name_of(key)), navigation.url_of(entry.model, key))
        for key in keys[:KEYS_SHOWN]
    ]
    asked = target.get("filter") or {}
    return {
        "entry": entry,
        "badge": badge_of_entry(entry),
        # Of the rows' model, where no rows are named.
        "kind": "" if keys else _kind(entry.model),
        "rows": shown,
        "more": max(len(keys), entry.asked or 0) - len(shown) if keys else 0,
        "filter": [(name, value) for name, value in asked.items() if value not in ("", None)],
    }
