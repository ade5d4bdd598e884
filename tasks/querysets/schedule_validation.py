"""Validate a schedule of a form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ValidationError

from leasing.validation.names import check_name
from tasks import registry
from tasks.exceptions import TaskError
from tasks.payload import check_data
from tasks.querysets import check_between, check_queue
from tasks.querysets.producer import new_task
from tasks.scheduling.rules import Cron

if TYPE_CHECKING:
    from tasks.models import Schedule


def clean_schedule(schedule: Schedule) -> None:
    """Refuse what could never be enqueued. Raises ValidationError, by field."""
    errors: dict[str, str] = {}

    def check(field: str, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except (TaskError, ValueError) as error:
            errors[field] = str(error)

    check("name", check_name, schedule.name, "name")
    check("task_name", registry.find, schedule.task_name)
    check("task_data", check_data, schedule.task_data)
    check("priority", check_between, schedule.priority, -32768, 32767, "priority")
    if schedule.queue:
        check("queue", check_queue, schedule.queue)
    if not errors:  # such as the key of a limit, which is made of the data
        tasks = apps.get_model("leasing_tasks", "Task")._default_manager
        check("task_data", new_task, tasks, schedule.task_name, schedule.task_data)
    check(_named_by(schedule), lambda: schedule.rule)
    if errors:
        raise ValidationError(errors)


def _named_by(schedule: Schedule) -> str:
    """The field that an error of the rule belongs to."""
    if schedule.every is not None and not schedule.cron:
        return "every"
    is_of_zone = schedule.cron and not _is_zone(schedule.timezone)
    return "timezone" if is_of_zone else "cron"


def _is_zone(name: str) -> bool:
    try:
        Cron("0 0 * * *", name)
    except TaskError:
        return False
    return True
