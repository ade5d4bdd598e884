"""Tasks, attempts, queues, workers and the generator's wish in Django's admin; schedules are at
``schedule_admin``."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasing.adminkit import Confirmed, ReadOnlyAdmin, badge, link, short, site_url
from leasing.forms import RevokeForm
from leasing.masking import masked
from leasing.templatetags.leasing_ops import pretty_json
from tasks.diagnosis import CANCEL, RETRY, REVOKE
from tasks.forms import CancelForm, PauseForm, ResumeForm, RetryForm
from tasks.models import (
    AttemptOutcome,
    GeneratorWish,
    Queue,
    Task,
    TaskAttempt,
    Worker,
    WorkerState,
)
from tasks.schedule_admin import ScheduleAdmin, ScheduleSlotAdmin
from tasks.signs import ATTEMPT_SIGNS, WORKER_SIGNS, queue_sign, task_sign

_retry = Confirmed(
    "Retried",
    "Set these tasks ready again?",
    RETRY.consequence,
    RetryForm,
    lambda rows, said, by: rows.retry(by=by),
    "retry",
)
_revoke = Confirmed(
    "Revoked",
    "Take these tasks from their holders?",
    REVOKE.consequence,
    RevokeForm,
    lambda rows, said, by: rows.revoke(reason=said["reason"], by=by),
    "revoke",
)
_cancel = Confirmed(
    "Cancelled",
    "Cancel these tasks?",
    CANCEL.consequence,
    CancelForm,
    lambda rows, said, by: rows.cancel(by=by, reason=said["reason"]),
    "cancel",
)

_pause = Confirmed(
    "Paused",
    "Pause these queues?",
    "Nothing of theirs is claimed from then on. What runs, runs to its end.",
    PauseForm,
    lambda rows, said, by: sum(
        rows.pause(queue.name, by=by, reason=said["reason"]) for queue in rows
    ),
    "pause",
)
_resume = Confirmed(
    "Resumed",
    "Resume these queues?",
    "What has waited is claimed at once, in its order.",
    ResumeForm,
    lambda rows, said, by: sum(rows.resume(queue.name, by=by) for queue in rows),
    "resume",
)


#: What only those see who have the permission view_payload.
PAYLOAD = ("data", "output")


def _tasks_of(text: str, **where: str) -> SafeString | str:
    return link(text, "admin:tasks_task_changelist", query="?" + urlencode(where))


def _worker(name: str) -> SafeString | str:
    return name and link(
        short(name), "admin:tasks_worker_changelist", query="?" + urlencode({"q": name})
    )


def _json(value: Any) -> SafeString:
    return format_html('<pre class="leasing-json">{}</pre>', pretty_json(masked(value)))


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    list_display = ("id", "called", "badge", "queue", "attempts", "worker", "scheduled_at")
    list_display_links = ("id", "called")
    sortable_by = ("id",)
    list_filter = ("status",)
    exact_search = ("id", "name", "unique_key")
    search_help_text = "An id, an exact name, or an exact unique key."
    large = ("task_data", "task_output", "last_error")
    actions = ("retry", "cancel", "revoke")
    fields = (
        "name",
        "badge",
        "queue",
        "priority",
        "data",
        "output",
        "last_error",
        ("attempts", "max_attempts"),
        "history_of_attempts",
        "unique_key",
        "duplicates",
        "created_at",
        "scheduled_at",
        "started_at",
        "processed_at",
        "worker",
        "acquired_at",
        "renewed_at",
        "renewals",
        "expires_at",
        "released_at",
        "ttl",
        "fencing_token",
        "grants",
        "grant_id",
    )
    readonly_fields = tuple(
        name for row in fields for name in (row if isinstance(row, tuple) else (row,))
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: Any = super().get_queryset(request)
        with_state: QuerySet[Any] = rows.with_state()
        return with_state

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        hidden = () if request.user.has_perm("tasks.view_payload") else PAYLOAD
        return [field for field in super().get_fields(request, obj) if field not in hidden]

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("tasks.retry_task")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("tasks.cancel_task")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("leasing.revoke_lease")

    def view_on_site(self, task: Task) -> str | None:
        return site_url("tasks:detail", task.pk)

    @admin.display(description="name")
    def called(self, task: Task) -> str:
        return short(task.name)

    @admin.display(description="state")
    def badge(self, task: Any) -> SafeString:
        return badge(task_sign(task, task.now))

    @admin.display(description="held by")
    def worker(self, task: Task) -> SafeString | str:
        return _worker(task.holder)

    @admin.display(description="payload")
    def data(self, task: Task) -> SafeString:
        return _json(task.task_data)

    @admin.display(description="result")
    def output(self, task: Task) -> SafeString:
        return _json(task.task_output)

    @admin.display(description="history")
    def history_of_attempts(self, task: Task) -> SafeString | str:
        query = "?" + urlencode({"task__id__exact": task.pk})
        return link(
            "Attempts that did not end well", "admin:tasks_taskattempt_changelist", query=query
        )

    @admin.action(description="Set ready again…", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Task]) -> Any:
        return _retry(self, request, queryset)

    @admin.action(description="Cancel…", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Task]) -> Any:
        return _cancel(self, request, queryset)

    @admin.action(description="Take from their holders…", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Task]) -> Any:
        return _revoke(self, request, queryset)


@admin.register(TaskAttempt)
class TaskAttemptAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "of_task",
        "number",
        "badge",
        "worker",
        "started_at",
        "ended_at",
        "refused_at",
    )
    list_filter = ("outcome",)
    exact_search = ("id", "grant_id")
    search_help_text = "The id of an attempt, or of its grant."
    large = ("error", "traceback")
    fields = (
        "of_task",
        "number",
        "badge",
        "worker",
        "started_at",
        "ended_at",
        "error",
        "trace",
        "refused_verb",
        "refused_at",
        "fencing_token",
        "grant_id",
    )
    readonly_fields = fields

    @admin.display(description="task")
    def of_task(self, attempt: TaskAttempt) -> SafeString | str:
        return link(f"task {attempt.task_id}", "admin:tasks_task_change", attempt.task_id)

    @admin.display(description="outcome")
    def badge(self, attempt: TaskAttempt) -> SafeString:
        return badge(ATTEMPT_SIGNS[AttemptOutcome(attempt.outcome)])

    @admin.display(description="held by")
    def worker(self, attempt: TaskAttempt) -> SafeString | str:
        return _worker(attempt.holder)

    @admin.display(description="traceback")
    def trace(self, attempt: TaskAttempt) -> SafeString:
        return format_html('<pre class="leasing-json">{}</pre>', attempt.traceback)


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    list_display = ("name", "badge", "paused_at", "paused_by", "reason")
    sortable_by = ("name",)
    exact_search = ("name",)
    search_help_text = "The exact name of a queue."
    actions = ("pause", "resume")
    fields = ("name", "badge", "paused_at", "paused_by", "reason", "waiting")
    readonly_fields = fields

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("tasks.pause_queue")

    @admin.display(description="state")
    def badge(self, queue: Queue) -> SafeString:
        return badge(queue_sign(queue))

    @admin.display(description="tasks")
    def waiting(self, queue: Queue) -> SafeString | str:
        return _tasks_of("Ready tasks", queue__exact=queue.name, status__exact="ready")

    @admin.action(description="Pause…", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Queue]) -> Any:
        return _pause(self, request, queryset)

    @admin.action(description="Resume…", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Queue]) -> Any:
        return _resume(self, request, queryset)


class WorkerStateFilter(admin.SimpleListFilter):
    """By what the last sign of life says."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.value, state.value) for state in WorkerState]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any] | None:
        chosen: QuerySet[Any] | None = (
            queryset.filter(state=self.value()) if self.value() in WorkerState.values else None
        )
        return chosen


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("name", "badge", "hostname", "pid", "concurrency", "last_seen_at", "doing")
    list_filter = (WorkerStateFilter,)
    exact_search = ("name", "id")
    search_help_text = "The exact name of a worker, or an id."
    large = ("handlers",)
    fields = (
        "name",
        "badge",
        "hostname",
        "pid",
        "queues",
        "handlers",
        "concurrency",
        "sweeps",
        "started_at",
        "last_seen_at",
        "stopped_at",
        "doing",
    )
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: Any = super().get_queryset(request)
        with_state: QuerySet[Any] = rows.with_state()
        return with_state

    @admin.display(description="state")
    def badge(self, worker: Any) -> SafeString:
        return badge(WORKER_SIGNS[worker.state])

    @admin.display(description="does now")
    def doing(self, worker: Worker) -> SafeString | str:
        return _tasks_of("Running tasks", holder__exact=worker.name, status__exact="running")


@admin.register(GeneratorWish)
class GeneratorWishAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "revision", "changed_by", "changed_at", "acknowledged_by")
    fields = (
        "wanted",
        "revision",
        "changed_by",
        "changed_at",
        "reason",
        "acknowledged_revision",
        "acknowledged_by",
        "acknowledged_at",
    )
    readonly_fields = fields


__all__ = [
    "GeneratorWishAdmin",
    "ScheduleAdmin",
    "ScheduleSlotAdmin",
    "TaskAdmin",
    "TaskAttemptAdmin",
    "WorkerAdmin",
]
