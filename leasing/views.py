"""The operator's pages about leases: lists by state, one lease with its events, revoke."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme

from leasing import audit, navigation
from leasing.access import may, page, verb
from leasing.conf import leasing_settings
from leasing.explanation import explain
from leasing.forms import EventsFilter, ForceReleaseForm, LeaseFilter
from leasing.functions import database_now
from leasing.leasables import find_row, in_state, listed, matching, rows_of
from leasing.models import EventKind, Leasable, LeaseEvent, leasable_models
from leasing.paging import Capped, InvalidCursor, Page, capped_count, page_of
from leasing.signs import event_sign
from leasing.term_lanes import drawing_of

VIEW, REVOKE = "leasing.view_lease", "leasing.revoke_lease"


@dataclass(frozen=True)
class Section:
    """The leases of one model."""

    title: str
    page: Page[Leasable]


@page(VIEW)
def lease_list(request: HttpRequest) -> HttpResponse:
    """Leases by state: the named ones, and beside them those of every other leasable model."""
    form = LeaseFilter(request.GET)
    sections: list[Section] = []
    tabs: list[dict[str, Any]] = []
    if form.is_valid():
        try:
            sections = [_section(model, form.cleaned_data) for model in leasable_models()]
        except InvalidCursor:
            form.add_error("at", form.fields["at"].error_messages["invalid"])
        else:
            tabs = _tabs(form.cleaned_data)
    context = {
        "form": form,
        "tabs": tabs,
        "sections": sections,
        "filter": form.cleaned_data,
        "renewed_count": _renewed_count(form.cleaned_data) if tabs else None,
        "renewed": "1" if form.cleaned_data.get("renewed") else None,
        "now": _now(),
    }
    return answer(request, "leasing/list.html", context, status=400 if form.errors else 200)


@page(VIEW)
def lease_detail(request: HttpRequest, lease_id: str) -> HttpResponse:
    """One lease: why it is as it is, who holds it, until when, and what happened to it."""
    row = find_row(lease_id)
    return _detail(request, row, ForceReleaseForm(row.lease_resource))


@verb(REVOKE)
def revoke(request: HttpRequest, lease_id: str) -> HttpResponse:
    """Take a lease from its holder."""
    row = find_row(lease_id)
    form = ForceReleaseForm(row.lease_resource, request.POST)
    if not form.is_valid():
        return _detail(request, row, form, status=400)
    reason = form.cleaned_data["reason"]
    user: Any = request.user
    with audit.recording(
        user, "revoke", type(row), keys=[row.pk], reason=reason, via="page"
    ) as act:
        act.changed = rows_of(type(row)).filter(pk=row.pk).revoke(reason=reason, by=act.by)
    if act.changed:
        messages.success(request, f"Taken from {row.holder}.", fail_silently=True)
    else:
        messages.warning(request, "Nothing changed: nobody holds it.", fail_silently=True)
    back = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(back, {request.get_host()}, request.is_secure()):
        return redirect(back)
    return redirect("leasing:detail", lease_id)


def _detail(
    request: HttpRequest, row: Leasable, revoke_form: ForceReleaseForm, status: int = 200
) -> HttpResponse:
    now: datetime = row.now
    form = EventsFilter(request.GET)
    events = LeaseEvent.objects.using(leasing_settings.DATABASE).filter(
        resource=row.lease_resource, model=row._meta.label_lower, key=str(row.pk)
    )
    cursor = form.cleaned_data["at"] if form.is_valid() else None
    try:
        shown = page_of(events, cursor)
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        shown = page_of(events, None)
    endings = [e for e in shown.rows if e.kind in (EventKind.RELEASED, EventKind.REVOKED)]
    context = {
        "row": row,
        "now": now,
        "row_url": navigation.row_url(row),
        "explanation": explain(row, now, None if shown.moved or not endings else endings[0]),
        "is_revocable": rows_of(type(row)).filter(pk=row.pk).holding().exists(),
        "events": shown,
        "drawing": None if shown.moved else drawing_of(row, shown.rows, now),
        "marked": [(event, event_sign(event.kind)) for event in shown.rows],
        "form": form,
        "revoke_form": revoke_form,
        "may_revoke": may(request, REVOKE),
    }
    return answer(request, "leasing/detail.html", context, status=400 if form.errors else status)


def _section(model: type[Leasable], wanted: dict[str, Any]) -> Section:
    rows = in_state(_asked(model, wanted), wanted["state"])
    shown = page_of(rows.with_state(), wanted["at"])
    return Section(str(model._meta.verbose_name_plural).capitalize(), shown)


def _asked(model: type[Leasable], wanted: dict[str, Any]) -> Any:
    """The rows of ``model`` that the filter asks for, apart from their state."""
    rows = listed(model)
    if wanted["renewed"]:
        rows = rows.renewed()
    return rows.filter(matching(model, wanted["q"])) if wanted["q"] else rows


def _tabs(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """The states to choose from, each with its count over all models."""
    return [
        {
            "state": None if state == LeaseFilter.ALL else state,
            "label": label,
            "count": _count([in_state(_asked(m, wanted), state) for m in leasable_models()]),
            "is_current": state == wanted["state"],
        }
        for state, label in LeaseFilter.STATES
    ]


def _renewed_count(wanted: dict[str, Any]) -> Capped:
    """How many of the leases in the wanted state were renewed."""
    renewed = wanted | {"renewed": True}
    return _count([in_state(_asked(m, renewed), wanted["state"]) for m in leasable_models()])


def _count(querysets: list[QuerySet[Any]]) -> Capped:
    return Capped(sum(capped_count(rows).value for rows in querysets))


def _now() -> datetime:
    return database_now(leasing_settings.DATABASE)
