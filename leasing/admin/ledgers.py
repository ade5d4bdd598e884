"""The ledgers in Django's admin: what happened to leases, and what operators did."""

from __future__ import annotations

from typing import ClassVar

from django.apps import apps
from django.contrib import admin
from django.utils.safestring import SafeString

from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.links import badge_column, column, json_column, link, short, short_column
from leasing.models import AuditEntry, LeaseEvent
from leasing.runtime.terminal import label
from leasing.web import navigation
from leasing.web.badges import badge_of_entry, badge_of_event


@admin.register(LeaseEvent)
class LeaseEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "badge", "leased", "held_by", "fencing_token", "actor", "why")
    list_filter = ("kind",)
    exact_search = ("resource", "id")
    search_help_text = "Exact name of a resource, or ID of an event"
    fields = (
        "at",
        "badge",
        "leased",
        "holder",
        ("previous_holder", "previous_expired_at"),
        ("fencing_token", "grant_id"),
        "reason",
        "actor",
    )

    badge = badge_column(lambda event: badge_of_event(event.kind), "event")
    leased = column(
        "resource", lambda event: _row(event.model, event.key, short(label(event.resource)))
    )
    held_by = short_column("holder")
    why = short_column("reason")


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "by", "verb", "done_to", "badge", "asked", "changed", "via", "why")
    exact_search = ("by", "verb", "id")
    search_help_text = "Exact name of a user or an action, or ID of an entry"
    #: An index begins with each of them.
    labels: ClassVar = {"asked": "selected"}
    indexed_filters = frozenset({"model__exact", "key__exact", "by__exact", "verb__exact"})
    large = ("target",)
    list_page = "leasing:audit"
    fields = (
        "at",
        "by",
        "verb",
        "via",
        "done_to",
        "badge",
        ("asked", "changed"),
        "skipped",
        "reason",
        "error",
        "finished_at",
        "shown_target",
    )

    badge = badge_column(badge_of_entry, "outcome")

    @admin.display(description="object")
    def done_to(self, entry: AuditEntry) -> SafeString | str:
        if not entry.key:
            return entry.model
        name = navigation.name_of(entry.model, entry.name_of(entry.key))
        return _row(entry.model, entry.key, short(name))

    why = short_column("reason")
    shown_target = json_column("target", "rows")


def _row(label: str, key: str, text: str) -> SafeString | str:
    """``text`` as a link to the row that a ledger names, if its model is still there."""
    try:
        meta = apps.get_model(label)._meta
    except (LookupError, ValueError):
        return text
    return link(text, f"admin:{meta.app_label}_{meta.model_name}_change", key)
