"""The page of one lease with what happened to it, and how it is taken from its holder."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme

from leasing import audit, navigation
from leasing.access import may, page, verb
from leasing.conf import leasing_settings
from leasing.drawing import Drawing
from leasing.explanation import explain
from leasing.exporting import FORMATS, export
from leasing.exports import EVENTS
from leasing.forms import EventsFilter, ForceReleaseForm
from leasing.leasables import find_row, rows_of
from leasing.live import answer
from leasing.models import Leasable, LeaseEvent
from leasing.paging import InvalidCursor, Page, page_of
from leasing.signs import event_sign
from leasing.term_lanes import drawing_of
from leasing.timeline import timeline

VIEW, REVOKE = "leasing.view_lease", "leasing.revoke_lease"


@page(VIEW)
def lease_detail(request: HttpRequest, lease_id: str) -> HttpResponse:
    """One lease: why it is as it is, who holds it, until when, and what happened to it."""
    row = find_row(lease_id)
    return _detail(request, row, ForceReleaseForm(row.lease_resource))


@page(VIEW)
def event_export(request: HttpRequest, lease_id: str, form: str) -> HttpResponseBase:
    """What happened to one lease, as a file."""
    row = find_row(lease_id)
    if form not in FORMATS:
        raise Http404("Nothing is exported so.")
    return export(request, _events(row), EVENTS, form, f"lease-{row.pk}-events")


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
    events = _events(row)
    cursor = form.cleaned_data["at"] if form.is_valid() else None
    try:
        shown = page_of(events, cursor)
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        shown = page_of(events, None)
    context = {
        "row": row,
        "now": now,
        "row_url": navigation.row_url(row),
        "explanation": explain(row, now, events=() if shown.moved else shown.rows),
        "is_revocable": rows_of(type(row)).filter(pk=row.pk).holding().exists(),
        "events": shown,
        "drawing": None if shown.moved else _drawing(row, shown, now),
        "marked": [(event, event_sign(event.kind)) for event in shown.rows],
        "form": form,
        "revoke_form": revoke_form,
        "may_revoke": may(request, REVOKE),
    }
    return answer(request, "leasing/detail.html", context, status=400 if form.errors else status)


def _events(row: Leasable) -> QuerySet[LeaseEvent]:
    return LeaseEvent.objects.using(leasing_settings.DATABASE).filter(
        resource=row.lease_resource, model=row._meta.label_lower, key=str(row.pk)
    )


def _drawing(row: Leasable, events: Page[LeaseEvent], now: datetime) -> Drawing:
    told = timeline(row, now, events.rows, has_more=bool(events.older))
    return drawing_of(row, told)
