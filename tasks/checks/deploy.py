"""Check the settings of a production for what is unsafe: ``manage.py check --deploy``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.utils.module_loading import import_string

from tasks.conf import task_settings
from tasks.querysets import TaskStatus

#: Brokers of one machine, or of one process.
LOCAL_BROKERS = ("filesystem", "memory")


@register(Tags.compatibility, deploy=True)
def check_growth(**kwargs: Any) -> Iterator[CheckMessage]:
    """Tables that grow for ever: claims, pages and vacuuming get slower with them."""
    if task_settings.PRUNE_EVERY is None:
        yield Warning(
            "No worker deletes ended tasks: TASK_QUEUE['PRUNE_EVERY'] is None.",
            hint="Schedule `manage.py prune_tasks`, then silence this check.",
            id="leasing_tasks.W101",
        )
    elif undeleted := _never_deleted():
        yield Warning(
            f"Some rows are never deleted, so their tables keep growing: {', '.join(undeleted)}.",
            hint="Set limits in TASK_QUEUE['RETENTION'], ['SAMPLE_RETENTION'] and "
            "['OUTBOX_RETENTION']. Failed tasks may be kept: they are few.",
            id="leasing_tasks.W102",
        )


@register(Tags.compatibility, deploy=True)
def check_broker(**kwargs: Any) -> Iterator[CheckMessage]:
    """A broker that other machines do not reach, or that confirms nothing."""
    path = task_settings.CELERY_APP
    if not (task_settings.CELERY_QUEUES and path):
        return
    try:
        app = import_string(path)
        url, options = app.conf.broker_write_url or "", app.conf.broker_transport_options or {}
    except Exception as error:
        yield Error(
            f"TASK_QUEUE['CELERY_APP'] cannot be loaded, so no relay can start: {error}",
            hint="Set it to the path of the Celery application, such as 'project.celery.app'.",
            id="leasing_tasks.E101",
        )
        return
    scheme = str(url).partition(":")[0]
    if scheme in LOCAL_BROKERS:
        yield Warning(
            f"The Celery broker is {scheme}://, which other machines cannot reach.",
            hint="Use Redis or RabbitMQ; this one is for demonstrations and tests.",
            id="leasing_tasks.W103",
        )
    elif options.get("confirm_publish") is False:
        yield Warning(
            "RabbitMQ does not confirm messages (confirm_publish is False): messages of the "
            "outbox may be lost, and tasks may be delayed by CELERY_PATIENCE.",
            hint="Remove confirm_publish from the transport options, or set it to True.",
            id="leasing_tasks.W104",
        )


def _never_deleted() -> list[str]:
    ages = task_settings.RETENTION
    retention = ages if isinstance(ages, Mapping) else {}
    states = (TaskStatus.SUCCEEDED.value, TaskStatus.CANCELLED.value)
    undeleted = [f"{state} tasks" for state in states if retention.get(state, 0) is None]
    if retention.get("keyed", 0) is None:
        undeleted.append("tasks with an idempotency key")
    if task_settings.SAMPLES and task_settings.SAMPLE_RETENTION is None:
        undeleted.append("samples")
    if task_settings.OUTBOX_RETENTION is None:
        undeleted.append("published messages of the outbox")
    return undeleted
