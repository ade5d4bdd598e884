"""Leases and their events in Django's admin."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

from django.apps import apps
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from leasing.adminkit import Confirmed, ReadOnlyAdmin, badge, link, short, site_url
from leasing.forms import RevokeForm
from leasing.models import Lease, LeaseEvent, LeaseState
from leasing.signs import event_sign, lease_sign

_revoke = Confirmed(
    "Revoked",
    "Take these leases from their holders?",
    "They lose them at once, and what they still write under the old tokens is refused. What "
    "they have already done elsewhere is not undone, and others may begin while they still run.",
    RevokeForm,
    lambda rows, said, by: rows.revoke(reason=said["reason"], by=by),
    "revoke",
)


class LeaseStateFilter(admin.SimpleListFilter):
    """By state; renewed is a property beside it."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        states = (LeaseState.ACTIVE, LeaseState.EXPIRED, LeaseState.RELEASED)
        return [*((state.value, state.value) for state in states), ("renewed", "renewed")]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any] | None:
        value = self.value()
        if value not in dict(self.lookups(request, None)):
            return None
        chosen: QuerySet[Any] = getattr(queryset, value)()
        return chosen


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = ("name", "badge", "held_by", "expires_at", "renewals", "grants")
    sortable_by = ("name",)
    list_filter = (LeaseStateFilter,)
    exact_search = ("resource", "id")
    search_help_text = "The exact name, or an id."
    actions = ("revoke",)
    fields = (
        "resource",
        "badge",
        "holder",
        "acquired_at",
        "renewed_at",
        "renewals",
        "expires_at",
        "released_at",
        "ttl",
        "fencing_token",
        "grants",
        "grant_id",
        "created_at",
        "events",
    )
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: Any = super().get_queryset(request)
        with_state: QuerySet[Any] = rows.with_state()
        return with_state

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leasing.revoke_lease")

    def view_on_site(self, lease: Lease) -> str | None:
        return site_url("leasing:detail", lease.lease_id)

    @admin.display(description="resource", ordering="resource")
    def name(self, lease: Lease) -> str:
        return short(lease.resource)

    @admin.display(description="holder")
    def held_by(self, lease: Lease) -> str:
        return short(lease.holder)

    @admin.display(description="state")
    def badge(self, lease: Any) -> SafeString:
        return badge(lease_sign(lease, lease.now))

    @admin.display(description="events")
    def events(self, lease: Lease) -> SafeString | str:
        query = "?" + urlencode({"q": lease.resource})
        return link("What happened to it", "admin:leasing_leaseevent_changelist", query=query)

    @admin.action(description="Take from their holders…", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Lease]) -> Any:
        return _revoke(self, request, queryset)


@admin.register(LeaseEvent)
class LeaseEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "badge", "leased", "held_by", "fencing_token", "actor", "why")
    list_filter = ("kind",)
    exact_search = ("resource", "id")
    search_help_text = "The exact name of a resource, or the id of an event."
    fields = (
        "at",
        "badge",
        "leased",
        "holder",
        "previous_holder",
        "grant_id",
        "fencing_token",
        "reason",
        "actor",
    )
    readonly_fields: ClassVar = fields

    @admin.display(description="event")
    def badge(self, event: LeaseEvent) -> SafeString:
        return badge(event_sign(event.kind))

    @admin.display(description="resource")
    def leased(self, event: LeaseEvent) -> SafeString | str:
        try:
            meta = apps.get_model(event.model)._meta
        except LookupError:
            return short(event.resource)
        return link(
            short(event.resource), f"admin:{meta.app_label}_{meta.model_name}_change", event.key
        )

    @admin.display(description="holder")
    def held_by(self, event: LeaseEvent) -> str:
        return short(event.holder)

    @admin.display(description="reason")
    def why(self, event: LeaseEvent) -> str:
        return short(event.reason)
