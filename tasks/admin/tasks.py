"""Tasks in Django's admin."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasing.admin.columns import NOTHING, stamped
from leasing.admin.filters import StateFilter
from leasing.admin.leases import LeasableAdmin, RevokeAction
from leasing.admin.links import (
    badge_column,
    column,
    json_column,
    related,
    short,
    short_column,
    site_url,
)
from leasing.diagnosis.base import Diagnosis
from leasing.web.badges import Badge
from tasks import registry
from tasks.admin.attempts import VIEW_PAYLOAD, related_to, worker_of
from tasks.dashboard.badges import SEVERITY_BADGES, badge_of_task
from tasks.dashboard.listing import PAYLOAD_START, STATES, in_state, moment_of, short_payload
from tasks.dashboard.operator_actions import ACTIONS, REVOCATION
from tasks.diagnosis import explain
from tasks.models import Queue, ScheduleSlot, Task, TaskAttempt, TaskStep, Worker


def _when(task: Any) -> SafeString | str:
    word, moment = moment_of(task, task.now)
    return format_html("{} {}", word, stamped(moment)) if moment else NOTHING


class TaskStateFilter(StateFilter):
    """By the states of the operator's list, in its words."""

    states: ClassVar = {name: partial(in_state, name) for name in STATES if name != "all"}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, STATES[name].label) for name in self.states]


@admin.register(Task)
class TaskAdmin(LeasableAdmin):
    list_display = ("of_id", "called", "badge", "when", "worker", "in_queue", "tries")
    list_display_links = ("of_id", "called")
    sortable_by = ("of_id",)
    list_filter = (TaskStateFilter,)
    labels: ClassVar = {
        "scheduled_at": "not before",
        "started_at": "first started",
        "processed_at": "ended",
        "progressed_at": "progress reported",
        "cancel_requested_by": "cancel requested by",
    }
    exact_search = ("id", "unique_key", "idempotency_key")
    recent_search = ("name",)
    search_help_text = "ID, exact unique or idempotency key, or exact name or alias"
    #: Tasks that succeeded are most of them, and in no index by their state.
    indexed_filters = frozenset(f"state={state}" for state in STATES if state != "succeeded") | {
        "parent__id__exact"
    }
    linked_filters = frozenset({"holder__exact", "queue__exact"})
    payload = ("task_data", "task_output", "checkpoint", "progress")
    payload_permission = VIEW_PAYLOAD
    large = (*payload, "last_error")
    list_page = "leasing_tasks:list"
    acts = (*ACTIONS.values(), RevokeAction(**vars(REVOCATION)))
    fieldsets = (
        (
            None,
            {
                "fields": [
                    "name",
                    "badge",
                    ("in_queue", "priority"),
                    "tries",
                    "last_error",
                ]
            },
        ),
        (
            "Arguments and result",
            {"fields": ["shown_task_data", "shown_task_output", "shown_progress"]},
        ),
        (
            "Times",
            {
                "fields": [
                    ("created_at", "scheduled_at"),
                    ("started_at", "processed_at"),
                    "timeout",
                    ("progress_timeout", "progressed_at"),
                    ("cancel_requested_at", "cancel_requested_by"),
                ]
            },
        ),
        ("Lease", {"fields": [("worker", "ends"), *LeasableAdmin.lease[1:]]}),
        (
            "Keys",
            {
                "fields": [
                    ("unique_key", "duplicates"),
                    ("unique_for", "unique_until"),
                    "idempotency_key",
                    ("concurrency_key", "concurrency_limit"),
                    "slot",
                    ("shown_checkpoint", "checkpoints"),
                ]
            },
        ),
    )

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, with the arguments for those who may see them."""
        shown = list(super().get_list_display(request))
        return shown if self._hidden(request) else [*shown, self.arguments]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows if self._hidden(request) else rows.annotate(payload_start=PAYLOAD_START)

    def _is(self, term: str, name: str) -> Q:
        # Tasks that were stored under a former name of their handler are its tasks too.
        return Q(name__in=registry.all_names(term)) if name == "name" else super()._is(term, name)

    def diagnosis(self, task: Any) -> tuple[Badge | None, Diagnosis | None]:
        diagnosis = explain(task)
        return SEVERITY_BADGES[diagnosis.severity], diagnosis

    def links(self, request: HttpRequest, task: Any) -> list[SafeString | str]:
        of_task = {"task__id__exact": task.pk}
        lease = site_url("leasing:detail", task.lease_id)
        may_see_lease = lease and request.user.has_perm("leasing.view_lease")
        return [
            related(request, "Unsuccessful attempts", TaskAttempt, of_task),
            related(request, "Completed steps", TaskStep, of_task),
            related(request, "Parent", Task, {"q": task.parent_id}) if task.parent_id else "",
            related(request, "Children", Task, {"parent__id__exact": task.pk}),
            related(request, "Slot of its schedule", ScheduleSlot, of_task),
            related(request, "Queue", Queue, {"q": task.queue}),
            related(request, "Worker", Worker, {"q": task.holder}) if task.holder else "",
            format_html('<a href="{}">Lease</a>', lease) if may_see_lease else "",
        ]

    called = short_column("name")
    arguments = column("arguments", lambda task: short(short_payload(task.payload_start)))
    of_id = column("task", lambda task: f"task:{task.pk}", ordering="id")
    badge = badge_column(lambda task: badge_of_task(task, task.now))
    when = column("when", _when)
    tries = column("attempts", lambda task: f"{task.attempts} of {task.max_attempts}")
    worker = column("worker", lambda task: worker_of(task.holder))
    in_queue = column("queue", lambda task: related_to("leasing_tasks_queue", task.queue))
    shown_task_data = json_column("task_data", "arguments")
    shown_task_output = json_column("task_output", "result")
    shown_progress = json_column("progress")
    shown_checkpoint = json_column("checkpoint")
