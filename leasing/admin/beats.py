"""Show the entries that Celery's beat has sent, in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.links import badge_column, related, short_column
from leasing.models import BeatEntry, Lease
from leasing.web.badges import badge_of_beat


@admin.register(BeatEntry)
class BeatEntryAdmin(ReadOnlyAdmin):
    list_display = ("called", "badge", "beat", "last_run_at", "sent_at", "runs")
    exact_search = ("id",)
    recent_search = ("name", "beat")
    search_help_text = "Exact name of an entry or of its beat"
    fields = (
        ("name", "badge"),
        "beat",
        ("last_run_at", "sent_at"),
        ("runs", "task_id"),
        "fencing_token",
    )

    def links(self, request: HttpRequest, entry: Any) -> list[SafeString | str]:
        return [related(request, "Lease of the leader", Lease, {"q": entry.beat})]

    called = short_column("name")
    badge = badge_column(badge_of_beat, "latest slot")
