"""What is unsafe in the settings of a production: ``manage.py check --deploy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, Warning, register

from tasks.conf import task_settings
from tasks.querysets import TaskStatus


def register_all() -> None:
    """Called when the app is ready."""
    register(Tags.compatibility, deploy=True)(check_growth)


def check_growth(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Tables that grow for ever: claims, pages and vacuuming get slower with them."""
    if task_settings.PRUNE_EVERY is None:
        return [
            Warning(
                "No worker deletes ended tasks: TASK_QUEUE['PRUNE_EVERY'] is None.",
                hint="Run `manage.py prune_tasks` by a scheduler, and silence this check then.",
                id="tasks.W101",
            )
        ]
    kept = _kept_for_ever()
    if not kept:
        return []
    return [
        Warning(
            f"Kept for ever, and growing with the work: {', '.join(kept)}.",
            hint="Give TASK_QUEUE['RETENTION'] and ['SAMPLE_RETENTION'] a time. Failed tasks may "
            "be kept: they are as many as go wrong.",
            id="tasks.W102",
        )
    ]


def _kept_for_ever() -> list[str]:
    given = task_settings.RETENTION
    retention = given if isinstance(given, Mapping) else {}
    states = (TaskStatus.SUCCEEDED.value, TaskStatus.CANCELLED.value)
    kept = [f"{state} tasks" for state in states if retention.get(state, 0) is None]
    samples = task_settings.SAMPLES and task_settings.SAMPLE_RETENTION is None
    return [*kept, "samples"] if samples else kept
