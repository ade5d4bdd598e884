"""Leases and keys of ``once`` in Django's admin."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.columns import NOTHING, stamped
from leasing.admin.filters import StateFilter
from leasing.admin.links import badge_column, column, json_column, related, short_column, site_url
from leasing.conf import leasing_settings
from leasing.dashboard.forms import ForceReleaseForm
from leasing.dashboard.lease_lists import other_stores
from leasing.dashboard.operator_actions import FormData, Keys, OperatorAction, count_text
from leasing.dashboard.settlement import SETTLE
from leasing.diagnosis.base import Diagnosis
from leasing.diagnosis.lease import explain
from leasing.models import Lease, LeaseEvent, LeaseState, OnceKey
from leasing.web.badges import Badge, badge_of_lease
from leasing.web.paging import PAGE_SIZE

REVOKE = "leasing.revoke_lease"


class ForceReleaseManyForm(ForceReleaseForm):
    """Take several leases from their holders. The operator types their number."""

    mismatch = "This is not the number of rows."


class RevokeAction(OperatorAction):
    """Take rows from their holders. The operator types the name of the one, or their number."""

    def form_for(self, rows: QuerySet[Any], keys: Keys, sent: Any = None) -> forms.Form:
        names = [row.lease_resource for row in rows.filter(pk__in=list(keys)[:2])]
        if len(names) == 1:
            return ForceReleaseForm(names[0], sent)
        return ForceReleaseManyForm(count_text(rows.model, len(keys)), sent)


def _unheld_reason(row: Any, form_data: FormData) -> str:
    """Return why no holder can lose ``row``; "" if one can."""
    states = {LeaseState.FREE: "never held", LeaseState.RELEASED: "released"}
    return states.get(row.lease_state(row.now), "")


REVOKE_LEASES = RevokeAction(
    "revoke",
    "Revoke leases",
    "Revoked",
    "Revoke these leases?",
    "The holders lose them immediately, and their writes under the old tokens are refused. Work "
    "already done elsewhere is not undone, and others may start while they are still running.",
    REVOKE,
    ForceReleaseForm,
    lambda rows, form_data, by: rows.revoke(reason=form_data["reason"], by=by),
    _unheld_reason,
    of_one="Revoke lease",
)


class LeaseStateFilter(StateFilter):
    """By the state of the lease; renewed is a property apart from it."""

    states = {each: methodcaller(each) for each in ("active", "expired", "released", "renewed")}


class LeasableAdmin(ReadOnlyAdmin):
    """Rows that are leased."""

    #: The columns of the lease, for a set of fields.
    lease = (
        ("holder", "ends"),
        ("acquired_at", "released_at"),
        ("renewed_at", "renewals"),
        ("ttl", "grants"),
        ("fencing_token", "grant_id"),
    )

    def links(self, request: HttpRequest, row: Any) -> list[SafeString | str]:
        return [related(request, "Events", LeaseEvent, {"q": row.lease_resource})]

    def diagnosis(self, row: Any) -> tuple[Badge | None, Diagnosis | None]:
        events = LeaseEvent.objects.using(leasing_settings.DATABASE).about(row)
        explanation = explain(row, row.now, events=events.order_by("-pk")[:PAGE_SIZE])
        return explanation.badge, explanation

    def view_on_site(self, row: Any) -> str | None:
        return super().view_on_site(row) or site_url("leasing:detail", row.lease_id)

    held_by = short_column("holder")
    # A lease that was never held has a deadline in 1970.
    ends = column("expires", lambda row: stamped(row.expires_at) if row.grants else NOTHING)
    badge = badge_column(lambda row: badge_of_lease(row, row.now))


@admin.register(Lease)
class LeaseAdmin(LeasableAdmin):
    list_display = ("name", "badge", "held_by", "ends", "renewals", "grants")
    sortable_by = ("name",)
    list_filter = (LeaseStateFilter,)
    exact_search = ("resource", "id")
    search_help_text = "Exact name or ID"
    large = ("metadata",)
    list_page = "leasing:list"
    fieldsets = (
        (None, {"fields": ["resource", "badge", "shown_metadata", "priority", "created_at"]}),
        ("Lease", {"fields": LeasableAdmin.lease}),
        ("Yielding", {"fields": [("grace", "ends_at"), ("yield_to", "wanted_until")]}),
    )
    acts = (REVOKE_LEASES,)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # Leases of other stores are no rows of a model: the operator's page lists them.
        page = site_url("leasing:stores") if other_stores() else None
        return super().changelist_view(request, {"stores_page": page, **(extra_context or {})})

    name = short_column("resource", ordering="resource")
    shown_metadata = json_column("metadata")


@admin.register(OnceKey)
class OnceKeyAdmin(LeasableAdmin):
    list_display = ("name", "badge", "held_by", "ends", "finished_at", "window_ends_at")
    list_filter = (LeaseStateFilter,)
    exact_search = ("key", "id")
    search_help_text = "Exact key or ID"
    #: Columns that no page shows: the result of the work is its caller's business.
    large = payload = ("result",)
    fieldsets = (
        (None, {"fields": ["key", "badge", "finished_at", "window_ends_at", "payload_hash"]}),
        ("Work", {"fields": ["attempts", "settled_by"]}),
        ("Lease", {"fields": LeasableAdmin.lease}),
    )
    acts = (REVOKE_LEASES, SETTLE)

    name = short_column("key")
