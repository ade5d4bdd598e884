"""Queues, workers, the generator's desired state and the samples in Django's admin."""

from __future__ import annotations

from datetime import timedelta
from operator import methodcaller
from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from leasing.admin.base import ReadOnlyAdmin
from leasing.admin.columns import NOTHING, stamped
from leasing.admin.filters import StateFilter
from leasing.admin.links import badge_column, column, related, short, short_column
from leasing.humanize import brief
from leasing.models import Lease
from tasks.conf import task_settings
from tasks.dashboard.badges import badge_of_queue, badge_of_worker
from tasks.dashboard.queue_actions import QUEUE_ACTIONS
from tasks.generator import has_row
from tasks.models import GeneratorDesiredState, Queue, Sample, Task, Worker, WorkerState


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    list_display = ("name", "badge", "paused_at", "paused_by", "reason")
    sortable_by = ("name",)
    ordering = ("name",)
    exact_search = ("name",)
    search_help_text = "Exact name of a queue"
    list_page = "leasing_tasks:queues"
    fields = ("name", "badge", ("paused_at", "paused_by"), "reason")
    acts = tuple(QUEUE_ACTIONS.values())

    def links(self, request: HttpRequest, queue: Any) -> list[SafeString | str]:
        def tasks(text: str, state: str) -> SafeString | str:
            return related(request, text, Task, {"queue__exact": queue.name, "state": state})

        return [
            tasks("Ready tasks", "ready"),
            tasks("Running tasks", "running"),
            tasks("Failed tasks", "failed"),
        ]

    badge = badge_column(badge_of_queue)


class WorkerStateFilter(StateFilter):
    """A filter by the state of the process, judged by its last heartbeat."""

    states = {each: methodcaller("filter", state=each) for each in WorkerState.values}


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        *("called", "badge", "role", "parent", "hostname", "pid", "concurrency", "last_seen_at"),
    )
    list_filter = (WorkerStateFilter, "role")
    exact_search = ("name", "fleet", "id")
    search_help_text = "Exact name of a worker or of its parent, or ID of a worker"
    large = ("handlers",)
    list_page = "leasing_tasks:workers"
    fields = (
        ("name", "badge", "role"),
        ("hostname", "pid"),
        ("fleet", "fleet_index"),
        "fleet_restarts",
        "queues",
        "handlers",
        ("slots", "blocked"),
        "sweeps",
        ("started_at", "last_seen_at"),
        ("stopped_at", "death"),
    )
    labels: ClassVar = {
        "fleet": "parent",
        "fleet_index": "number under its parent",
        "fleet_restarts": "restarts",
        "sweeps": "runs recovery",
        "death": "how it died",
    }

    def links(self, request: HttpRequest, worker: Any) -> list[SafeString | str]:
        holds = {"holder__exact": worker.name, "state": "running"}
        return [related(request, "Current tasks", Task, holds)]

    called = short_column("name")
    parent = column(
        "parent",
        lambda worker: f"{short(worker.fleet)} · {worker.fleet_index}" if worker.fleet else "",
    )
    badge = badge_column(badge_of_worker)


@admin.register(GeneratorDesiredState)
class GeneratorDesiredStateAdmin(ReadOnlyAdmin):
    list_display = ("state", "revision", "changed_by", "changed_at", "acknowledged_by")
    list_page = "leasing_tasks:generator"
    fields = (
        "state",
        "revision",
        ("changed_by", "changed_at"),
        "reason",
        ("acknowledged_by", "acknowledged_at"),
        "acknowledged_revision",
    )

    state = column("desired state", lambda desired: "running" if desired.wanted else "stopped")

    def links(self, request: HttpRequest, desired: Any) -> list[SafeString | str]:
        if not has_row():
            return []
        lease = {"q": task_settings.GENERATOR_LEASE}
        return [related(request, "Lease of the generator", Lease, lease)]


@admin.register(Sample)
class SampleAdmin(ReadOnlyAdmin):
    list_display = (
        *("at", "queue", "ready", "scheduled", "running", "enqueued", "claimed", "completed"),
        *("failed", "retried", "recovered", "p95"),
    )
    exact_search = ("id",)
    recent_search = ("queue",)
    search_help_text = "Exact name of a queue, or ID of a sample"
    list_page = "leasing_tasks:overview"
    large = ("handlers",)
    fields = (
        ("at", "queue"),
        ("ready", "scheduled", "running"),
        ("enqueued", "claimed", "completed"),
        ("failed", "cancelled", "retried", "recovered"),
        ("p50", "p95", "longest"),
        ("renewals", "expirations", "releases"),
        "handlers",
    )

    at = column("time", lambda sample: stamped(sample.at))
    p50 = column("waiting time, p50", lambda sample: _waited(sample.wait_p50))
    p95 = column("waiting time, p95", lambda sample: _waited(sample.wait_p95))
    longest = column("oldest waiting task", lambda sample: _waited(sample.oldest))


def _waited(seconds: float | None) -> str:
    return NOTHING if seconds is None else brief(timedelta(seconds=seconds))
