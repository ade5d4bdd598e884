"""Messages of the outbox in Django's admin."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.filters import StateFilter
from leasing.admin.links import badge_column, column, json_column, related, short, short_column
from leasing.dashboard.forms import ReasonForm
from leasing.dashboard.operator_actions import FormData, OperatorAction
from leasing.models import Lease
from tasks.admin.attempts import VIEW_PAYLOAD
from tasks.dashboard.badges import badge_of_message
from tasks.models import OutboxMessage
from tasks.outbox import bucket_lease


class MessageStateFilter(StateFilter):
    """A filter by the state of publication. An index has the messages that wait for a relay."""

    states = {
        "pending": lambda rows: rows.pending(),
        "refused": lambda rows: rows.pending().filter(failures__gt=0),
        "published": lambda rows: rows.filter(published_at__isnull=False),
    }


def _discard_blocked_by(message: OutboxMessage, form_data: FormData) -> str:
    return "published" if message.published_at else ""


def _retry_blocked_by(message: OutboxMessage, form_data: FormData) -> str:
    return _discard_blocked_by(message, form_data) or ("" if message.due_at else "not postponed")


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    list_display = ("id", "badge", "called", "of_key", "created_at", "published_at", "failures")
    list_filter = (MessageStateFilter,)
    exact_search = ("uid", "id")
    recent_search = ("key", "topic")
    search_help_text = "ID, exact key or exact topic of a message"
    indexed_filters = frozenset({"state=pending", "state=refused"})
    payload = ("payload",)
    payload_permission = VIEW_PAYLOAD
    large = (*payload, "last_error")
    fields = (
        ("topic", "badge", "key"),
        "uid",
        ("created_at", "published_at"),
        ("failures", "due_at"),
        "last_error",
        "shown_payload",
    )
    acts = (
        OperatorAction(
            "retry",
            "Retry",
            "Retried",
            "Retry these messages?",
            "The relay retries them at its next poll, then sends the later messages of their keys.",
            "leasing_tasks.retry_outboxmessage",
            forms.Form,
            lambda rows, form_data, by: rows.retry(),
            _retry_blocked_by,
        ),
        OperatorAction(
            "discard",
            "Discard",
            "Discarded",
            "Discard these messages?",
            "They are never sent. This cannot be undone. Later messages of their keys are sent "
            "without them: consumers see a gap.",
            "leasing_tasks.discard_outboxmessage",
            ReasonForm,
            lambda rows, form_data, by: rows.discard(),
            _discard_blocked_by,
            deletes=True,
        ),
    )

    def links(self, request: HttpRequest, message: Any) -> list[SafeString | str]:
        lease = bucket_lease(message.bucket)
        return [related(request, "Lease of its bucket", Lease, {"q": lease})]

    called = short_column("topic")
    of_key = column("key", lambda message: short(message.key) or "–")
    badge = badge_column(badge_of_message)
    shown_payload = json_column("payload")
