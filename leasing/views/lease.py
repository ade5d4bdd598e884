"""The page of one lease with what happened to it, and how it is taken from its holder."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme

from leasing import audit
from leasing.conf import leasing_settings
from leasing.dashboard import lease_lists
from leasing.dashboard.exports import EVENTS
from leasing.dashboard.forms import EventsFilter, ForceReleaseForm
from leasing.dashboard.settlement import SETTLE
from leasing.dashboard.term_chart import drawing_of
from leasing.dashboard.timeline import timeline
from leasing.diagnosis.lease import explain, holding
from leasing.models import Leasable, LeaseEvent, OnceKey
from leasing.models.kinds import find_row, rows_of
from leasing.web import navigation
from leasing.web.access import check_may_see, may, page, report, seen_grants, verb
from leasing.web.badges import badge_of_event
from leasing.web.cursors import Cursor
from leasing.web.export import FORMATS, export
from leasing.web.masking import masked
from leasing.web.paging import page_of
from leasing.web.polling import answer, read_or_first

VIEW, REVOKE = "leasing.view_lease", "leasing.revoke_lease"


@page(VIEW)
def lease_detail(request: HttpRequest, lease_id: str) -> HttpResponse:
    """One lease: why it is as it is, who holds it, until when, and what happened to it."""
    return _detail(request, lease_id)


@page(VIEW)
def event_export(request: HttpRequest, lease_id: str, form: str) -> HttpResponseBase:
    """Export the events of one lease, as a file.

    Args:
        lease_id: The id of the lease, as pages and the API have it.
        form: The format of the file: one of ``FORMATS``.
    """
    row = _row_or_404(lease_id)
    if form not in FORMATS:
        raise Http404(f"There is no export format {form}.")
    return export(request, _events(row), EVENTS, form, f"lease-{row.pk}-events")


@verb(REVOKE)
def revoke(request: HttpRequest, lease_id: str) -> HttpResponse:
    """Take a lease from its holder."""
    row = _row_or_404(lease_id)
    form = ForceReleaseForm(row.lease_resource, request.POST)
    if not form.is_valid():
        check_may_see(request, VIEW, form)
        return _detail(request, lease_id, form, status=400)
    reason = form.cleaned_data["reason"]
    user: Any = request.user
    with audit.recording(
        user, "revoke", type(row), keys=[row.pk], reason=reason, via="page"
    ) as act:
        held = rows_of(type(row)).filter(pk=row.pk)
        seen = seen_grants(request)
        if seen is not None:
            held = held.filter(grants=seen)
        act.changed = held.revoke(reason=reason, by=act.by)
    message = f"Lease revoked from {row.holder}."
    otherwise = "Nothing changed: the lease is not held, or it was granted again meanwhile."
    report(request, act.changed, message, otherwise)
    back = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(back, {request.get_host()}, request.is_secure()):
        return redirect(back)
    return redirect("leasing:detail", lease_id)


@verb(SETTLE.permission)
def settle(request: HttpRequest, lease_id: str) -> HttpResponse:
    """Give a key of ``once`` a result in place of work that was left."""
    row = _row_or_404(lease_id)
    if not isinstance(row, OnceKey):
        raise Http404("Only a key of once is settled.")
    rows = rows_of(OnceKey)
    form = SETTLE.form_for(rows, {row.pk: None}, request.POST)
    if not form.is_valid():
        check_may_see(request, VIEW, form)
        return _detail(request, lease_id, settle_form=form, status=400)
    keys, form_data = {row.pk: seen_grants(request)}, form.cleaned_data
    try:
        outcome = SETTLE.perform(rows, keys, form_data, user=request.user, via="page")
        changed, otherwise = outcome.changed, f"Nothing changed: {outcome.reasons}."
    except SETTLE.refusals as error:
        changed, otherwise = 0, f"Nothing changed: {error}"
    report(request, changed, "Key settled.", otherwise)
    return redirect("leasing:detail", lease_id)


def _detail(
    request: HttpRequest,
    lease_id: str,
    revoke_form: ForceReleaseForm | None = None,
    settle_form: Form | None = None,
    status: int = 200,
) -> HttpResponse:
    form = EventsFilter(request.GET)

    def read(now: datetime, cursor: Cursor | None) -> dict[str, Any]:
        row = _row_or_404(lease_id)
        events = page_of(_events(row), cursor)
        history = timeline(row, now, events.rows, has_more=bool(events.older))
        return {
            "row": row,
            "holding": holding(row),
            "row_url": navigation.row_url(row),
            "holder_url": navigation.holder_url(row.holder),
            "is_internal": lease_lists.is_internal(row),
            "metadata": masked(getattr(row, "metadata", None)),
            "events": events,
            "marked": [(event, badge_of_event(event.kind)) for event in events.rows],
            "explanation": explain(row, now, events=() if events.moved else events.rows),
            "drawing": None if events.moved else drawing_of(row, history),
            "is_settleable": isinstance(row, OnceKey) and SETTLE.is_applicable(row),
            "is_revocable": rows_of(type(row)).filter(pk=row.pk).holding().exists(),
        }

    def rest() -> dict[str, Any]:
        row = reading.context["row"]
        return {
            "revoke_form": revoke_form or ForceReleaseForm(row.lease_resource),
            "settle_form": settle_form or SETTLE.form_for(rows_of(OnceKey), {}),
        }

    reading = read_or_first(request, form, read)
    context = {
        "form": form,
        "may_revoke": may(request, REVOKE),
        "may_settle": may(request, SETTLE.permission),
        "settle": SETTLE,
    }
    return answer(request, "leasing/detail.html", context, reading, status, rest)


def _row_or_404(lease_id: str) -> Leasable:
    try:
        return find_row(lease_id)
    except Http404 as error:
        raise Http404(
            f"There is no lease {lease_id}. It was deleted some time after its end, or it never "
            "existed."
        ) from error


def _events(row: Leasable) -> QuerySet[LeaseEvent]:
    return LeaseEvent.objects.using(leasing_settings.DATABASE).about(row)
