"""Attempts and steps of tasks in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.links import (
    badge_column,
    column,
    json_column,
    link,
    related,
    short,
    short_column,
    site_url,
)
from tasks.dashboard.badges import ATTEMPT_BADGES
from tasks.models import AttemptOutcome, Task, TaskAttempt, TaskStep

VIEW_PAYLOAD = "leasing_tasks.view_payload"


def worker_of(name: str) -> SafeString | str:
    """The name of a holder as a link to the worker of that name."""
    return related_to("leasing_tasks_worker", name) if name else "–"


def related_to(model: str, name: str) -> SafeString | str:
    """``name`` as a link to the list of ``model`` in which it is searched for."""
    return link(short(name), f"admin:{model}_changelist", query="?" + urlencode({"q": name}))


def task_of(row: Any) -> SafeString | str:
    """The task of ``row`` as a link to it."""
    return link(f"task:{row.task_id}", "admin:leasing_tasks_task_change", row.task_id)


class OfTaskAdmin(ReadOnlyAdmin):
    """Rows about a task."""

    indexed_filters = frozenset({"task__id__exact"})

    def links(self, request: HttpRequest, row: Any) -> list[SafeString | str]:
        return [related(request, f"task:{row.task_id}", Task, row.task_id)]

    def view_on_site(self, row: Any) -> str | None:
        return site_url("leasing_tasks:detail", row.task_id)

    of_task = column("task", task_of)


@admin.register(TaskAttempt)
class TaskAttemptAdmin(OfTaskAdmin):
    list_display = (
        *("id", "of_task", "number", "badge", "worker", "started_at", "ended_at", "refused_at"),
    )
    list_filter = ("outcome",)
    indexed_filters = OfTaskAdmin.indexed_filters | {"outcome__exact=lost"}
    exact_search = ("id",)
    recent_search = ("grant_id",)
    search_help_text = "ID of an attempt or of its grant"
    large = ("error", "exception", "traceback")
    fields = (
        ("of_task", "number", "badge"),
        "worker",
        ("started_at", "ended_at"),
        "error",
        "exception",
        "trace",
        ("refused_verb", "refused_at"),
        ("fencing_token", "grant_id"),
    )

    badge = badge_column(lambda attempt: ATTEMPT_BADGES[AttemptOutcome(attempt.outcome)], "outcome")
    worker = column("worker", lambda attempt: worker_of(attempt.holder))
    trace = column(
        "traceback",
        lambda attempt: format_html('<pre class="leasing-json">{}</pre>', attempt.traceback),
    )


@admin.register(TaskStep)
class TaskStepAdmin(OfTaskAdmin):
    list_display = ("id", "of_task", "called", "finished_at")
    exact_search = ("id",)
    recent_search = ("name",)
    search_help_text = "ID or exact name of a step"
    large = payload = ("output",)
    payload_permission = VIEW_PAYLOAD
    fields = ("of_task", "name", "finished_at", "shown_output")

    called = short_column("name")
    shown_output = json_column("output")
