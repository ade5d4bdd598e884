"""Tasks in Django's admin."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasing.admin.actions import Act, Keys, Outlook, Picked, Said
from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.leases import LeasableAdmin, RevokeAct
from leasing.admin.links import badge, json_of, related, short, site_url
from leasing.dashboard.forms import ForceReleaseForm
from leasing.diagnosis.base import Diagnosis
from leasing.web.badges import Sign
from tasks.admin.attempts import VIEW_PAYLOAD, related_to, worker_of
from tasks.dashboard import operator_actions
from tasks.dashboard.badges import SEVERITY_SIGNS, task_sign
from tasks.diagnosis import REVOKE, diagnose
from tasks.models import (
    Queue,
    ScheduleSlot,
    Task,
    TaskAttempt,
    TaskStatus,
    TaskStep,
    Worker,
)


class TaskAct(Act):
    """A verb of the operator's pages, done in the admin."""

    @classmethod
    def of(cls, verb: operator_actions.Verb) -> TaskAct:
        return cls(
            verb.name,
            f"{verb.label}…",
            verb.done,
            f"{verb.label} these tasks?",
            verb.of_many,
            verb.permission,
            verb.form,
            verb.apply,
            flag=DELETION if verb.name == "discard" else CHANGE,
        )

    @property
    def verb(self) -> operator_actions.Verb:
        return operator_actions.VERBS[self.name]

    def form_for(self, site: ReadOnlyAdmin, picked: Picked, sent: Any) -> forms.Form:
        return self.verb.blank(sent)

    def fits(self, site: ReadOnlyAdmin, row: Any) -> bool:
        return self.verb in operator_actions.verbs_for(row, row.now)

    def outlook(self, site: ReadOnlyAdmin, keys: Keys, said: Said) -> Outlook:
        view = operator_actions.outlook(self.verb, keys, said)
        return Outlook(view.fitting, view.skipped)

    def perform(
        self, site: ReadOnlyAdmin, request: HttpRequest, keys: Keys, said: Said, by_filter: Any
    ) -> tuple[int, Any]:
        outcome = operator_actions.perform(request, self.verb, keys, said, by_filter, via="admin")
        return outcome.changed, outcome.skipped


def _not_running(task: Task) -> str:
    return "" if task.status == TaskStatus.RUNNING else "not running"


@admin.register(Task)
class TaskAdmin(LeasableAdmin):
    list_display = ("id", "badge", "called", "queue", "attempts", "worker", "scheduled_at")
    list_display_links = ("id", "called")
    sortable_by = ("id",)
    list_filter = ("status",)
    exact_search = ("id", "unique_key", "idempotency_key")
    recent_search = ("name",)
    search_help_text = "ID, exact unique or idempotency key, or exact name"
    #: Tasks that succeeded are most of them, and in no index by their state.
    indexed_filters = frozenset(
        f"status__exact={status}" for status in TaskStatus if status != TaskStatus.SUCCEEDED
    )
    linked_filters = frozenset({"holder__exact", "queue__exact"})
    payload = ("task_data", "task_output", "checkpoint", "progress")
    payload_permission = VIEW_PAYLOAD
    large = (*payload, "last_error")
    list_page = "leasing_tasks:list"
    acts = (
        *(TaskAct.of(verb) for verb in operator_actions.VERBS.values()),
        RevokeAct(
            "revoke",
            "Revoke leases…",
            "Revoked",
            "Revoke the leases of these tasks?",
            REVOKE.consequence,
            REVOKE.permission,
            ForceReleaseForm,
            lambda rows, said, by: rows.revoke(reason=said["reason"], by=by),
            _not_running,
            of_one="Revoke lease…",
        ),
    )
    fieldsets = (
        (
            None,
            {
                "fields": [
                    "name",
                    "badge",
                    ("in_queue", "priority"),
                    ("attempts", "max_attempts"),
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
                    ("timeout", "progress_timeout", "progressed_at"),
                    ("cancel_requested_at", "cancel_requested_by"),
                ]
            },
        ),
        ("Lease", {"fields": [("worker", "ends"), *LeasableAdmin.lease[1:]]}),
        (
            "Keys",
            {
                "fields": [
                    ("unique_key", "unique_for", "unique_until", "duplicates"),
                    "idempotency_key",
                    ("concurrency_key", "concurrency_limit", "slot"),
                    ("shown_checkpoint", "checkpoints"),
                ]
            },
        ),
    )

    def diagnosis(self, task: Any) -> tuple[Sign | None, Diagnosis | None]:
        found = diagnose(task)
        return SEVERITY_SIGNS[found.severity], found

    def links(self, request: HttpRequest, task: Any) -> list[SafeString | str]:
        of_task = {"task__id__exact": task.pk}
        lease = site_url("leasing:detail", task.lease_id)
        may_see_lease = lease and request.user.has_perm("leasing.view_lease")
        return [
            related(request, "Unsuccessful attempts", TaskAttempt, of_task),
            related(request, "Completed steps", TaskStep, of_task),
            related(request, "Slot of its schedule", ScheduleSlot, of_task),
            related(request, "Queue", Queue, {"q": task.queue}),
            related(request, "Worker", Worker, {"q": task.holder}) if task.holder else "",
            format_html('<a href="{}">Lease</a>', lease) if may_see_lease else "",
        ]

    def view_on_site(self, task: Task) -> str | None:
        return site_url("leasing_tasks:detail", task.pk)

    @admin.display(description="name")
    def called(self, task: Task) -> str:
        return short(task.name)

    @admin.display(description="state")
    def badge(self, task: Any) -> SafeString:
        return badge(task_sign(task, task.now))

    @admin.display(description="held by")
    def worker(self, task: Task) -> SafeString | str:
        return worker_of(task.holder)

    @admin.display(description="queue")
    def in_queue(self, task: Task) -> SafeString | str:
        return related_to("leasing_tasks_queue", task.queue)

    @admin.display(description="arguments")
    def shown_task_data(self, task: Task) -> SafeString | str:
        return json_of(task.task_data)

    @admin.display(description="result")
    def shown_task_output(self, task: Task) -> SafeString | str:
        return json_of(task.task_output)

    @admin.display(description="progress")
    def shown_progress(self, task: Task) -> SafeString | str:
        return json_of(task.progress)

    @admin.display(description="checkpoint")
    def shown_checkpoint(self, task: Task) -> SafeString | str:
        return json_of(task.checkpoint)
