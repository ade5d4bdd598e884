"""Addresses of the pages about tasks, workers and the generator."""

from __future__ import annotations

from django.urls import path, re_path

from leasing.web import navigation
from leasing.web.cache import shared
from leasing.web.navigation import Entry
from tasks.dashboard.worker_rows import url_of_holder
from tasks.generator import is_used
from tasks.views import (
    actions,
    detail,
    generator,
    handlers,
    keys,
    lists,
    overview,
    queues,
    runbook,
    schedules,
    workers,
)

app_name = "leasing_tasks"

SEE_TASKS, SEE_WORKERS = "leasing_tasks.view_task", "leasing_tasks.view_worker"
SEE_SCHEDULES, SEE_QUEUES = "leasing_tasks.view_schedule", "leasing_tasks.view_queue"
INSIDE_TASKS = ("leasing_tasks:detail", "leasing_tasks:act", "leasing_tasks:bulk")
#: Views that show their own page again when they refuse.
INSIDE_QUEUES = ("leasing_tasks:queue_pause", "leasing_tasks:queue_resume")
INSIDE_GENERATOR = ("leasing_tasks:generator_start", "leasing_tasks:generator_stop")

navigation.add(
    Entry(10, "leasing_tasks:overview", "Overview", "pulse", SEE_TASKS),
    Entry(20, "leasing_tasks:list", "Tasks", "stack", SEE_TASKS, INSIDE_TASKS),
    Entry(30, "leasing_tasks:stuck", "Stuck", "alert", SEE_TASKS),
    Entry(42, "leasing_tasks:keys", "Idempotency keys", "swap", SEE_TASKS),
    Entry(44, "leasing_tasks:queues", "Queues", "queue", SEE_QUEUES, INSIDE_QUEUES),
    Entry(45, "leasing_tasks:handlers", "Handlers", "pulse", SEE_TASKS),
    Entry(46, "leasing_tasks:schedules", "Schedules", "clock", SEE_SCHEDULES),
    Entry(
        50, "leasing_tasks:workers", "Workers", "workers", SEE_WORKERS, ("leasing_tasks:worker",)
    ),
    Entry(
        60,
        "leasing_tasks:generator",
        "Generator",
        "bolt",
        SEE_TASKS,
        INSIDE_GENERATOR,
        lambda: shared("generator", is_used, fresh=False),
    ),
)
navigation.add(
    Entry(
        95, "leasing_tasks:runbook", "Runbook", "info", SEE_TASKS, ("leasing_tasks:runbook_page",)
    )
)
navigation.add_holder_page(url_of_holder)
navigation.add_row_page("leasing_tasks.task", "leasing_tasks:detail")
navigation.add_row_page("leasing_tasks.worker", "leasing_tasks:worker")
navigation.add_shared_page("leasing_tasks.queue", "leasing_tasks:queues")
navigation.add_shared_page("leasing_tasks.schedule", "leasing_tasks:schedules")
navigation.add_shared_page(
    "leasing_tasks.generatordesiredstate", "leasing_tasks:generator", only="generator"
)

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("runbook/", runbook.runbook, name="runbook"),
    path("runbook/<slug:name>/", runbook.runbook, name="runbook_page"),
    path("tasks/", lists.task_list, name="list"),
    re_path(r"^tasks\.(?P<form>csv|json)$", lists.task_export, name="export"),
    path("tasks/stuck/", lists.stuck, name="stuck"),
    re_path(
        r"^tasks/recovered\.(?P<form>csv|json)$", lists.recovered_export, name="recovered_export"
    ),
    path("tasks/bulk/<slug:name>/", actions.bulk, name="bulk"),
    path("tasks/<int:pk>/", detail.task_detail, name="detail"),
    path("tasks/<int:pk>/<slug:name>/", actions.act, name="act"),
    path("schedules/", schedules.schedule_list, name="schedules"),
    path("schedules/<int:pk>/pause/", schedules.act, {"name": "pause"}, name="schedule_pause"),
    path("schedules/<int:pk>/resume/", schedules.act, {"name": "resume"}, name="schedule_resume"),
    path("schedules/<int:pk>/run/", schedules.act, {"name": "run_now"}, name="schedule_run"),
    path("keys/", keys.key_list, name="keys"),
    re_path(r"^keys\.(?P<form>csv|json)$", keys.key_export, name="keys_export"),
    path("queues/", queues.queues, name="queues"),
    path("queues/pause/", queues.pause, name="queue_pause"),
    path("queues/resume/", queues.resume, name="queue_resume"),
    path("handlers/", handlers.handlers, name="handlers"),
    path("workers/", workers.workers, name="workers"),
    path("workers/<int:pk>/", workers.worker_detail, name="worker"),
    path("generator/", generator.generator, name="generator"),
    path("generator/start/", generator.generator_start, name="generator_start"),
    path("generator/stop/", generator.generator_stop, name="generator_stop"),
]
