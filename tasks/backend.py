"""The backend for Django's tasks: ``TASKS = {"default": {"BACKEND":
"tasks.backend.DatabaseBackend"}}``.

Enqueue, ``get_result`` and ``refresh`` cost one query each. Backends are built while modules are
loading, so models are imported when they are needed.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast

from django.apps import apps
from django.core.checks import CheckMessage, Error

from leasing.conf import is_number
from tasks.conf import task_settings
from tasks.django_api import bridge
from tasks.django_api.bridge import DatabaseTask
from tasks.django_api.compat import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    is_heard,
    normalized,
    task_enqueued,
)
from tasks.exceptions import UnknownQueue

P = ParamSpec("P")
R = TypeVar("R")

#: Keys of ``OPTIONS``.
OPTIONS = ("max_attempts", "modules", "timeout")
#: Options among them that are defaults of tasks without their own.
DEFAULTS = ("max_attempts", "timeout")
#: Tasks that a backend remembers to have validated.
MAX_VALIDATED = 200
#: The greatest key that databases store.
MAX_KEY = 2**63 - 1


class DatabaseBackend(BaseTaskBackend):
    """Stores tasks in the database, for ``manage.py run_worker``."""

    task_class = DatabaseTask

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        #: The tasks that were validated latest, by identity (they need not have a hash), each
        #: with the queues there were.
        self._validated: dict[int, tuple[AnyTask, set[str]]] = {}

    def validate_task(self, task: AnyTask) -> None:
        """Check ``task``, and let workers run it. Raises InvalidTask."""
        super().validate_task(task)
        defaults = {key: self.options[key] for key in DEFAULTS if key in self.options}
        bridge.declare(task, defaults)
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        self._validated[id(task)] = task, self.queues

    def enqueue(
        self, task: Task[P, R], args: list[Any], kwargs: dict[str, Any]
    ) -> TaskResult[P, R]:
        """Store ``task`` with JSON arguments, as part of the caller's transaction if there is one.
        Raises InvalidTask, TypeError (arguments that are not JSON).

        Args:
            task: The task of Django's API.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        from tasks import models
        from tasks.django_api import results

        if self._validated.get(id(task)) != (task, self.queues):
            self.validate_task(task)
        data = {"args": normalized([*args]), "kwargs": normalized(kwargs), "backend": self.alias}
        if task.run_after is not None:
            data["run_after"] = task.run_after.isoformat()
        try:
            row = models.Task.objects.enqueue(
                task.module_path,
                data,
                queue=task.queue_name,
                priority=int(task.priority),
                scheduled_at=task.run_after,
                max_attempts=getattr(task, "max_attempts", None)
                or self.options.get("max_attempts"),
                timeout=getattr(task, "timeout", None) or self.options.get("timeout"),
            )
        except UnknownQueue as error:
            raise InvalidTask(str(error)) from error
        result = cast("TaskResult[P, R]", results.result_of(task, row, []))
        if is_heard(task_enqueued, logging.DEBUG):
            task_enqueued.send(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return the result of a task of this queue, whichever alias and process enqueued it.

        Raises TaskResultDoesNotExist, also for tasks that this process does not declare.
        """
        from tasks import models
        from tasks.django_api import results

        key = _key(result_id)
        found = results.fetch(models.Task.objects.home(), key) if key is not None else None
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        row, attempts = found
        declared = bridge.find(row.name)
        if declared is None:
            raise TaskResultDoesNotExist(
                f"{result_id}: no task {row.name!r} is declared in this process."
            )
        return results.result_of(declared, row, attempts)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check these settings. Runs no query."""
        return [*self._check_app(), *self._check_options(), *self._check_queues()]

    def _check_app(self) -> Iterable[CheckMessage]:
        for app in ("leasing", "tasks"):
            if not apps.is_installed(app):
                yield Error(
                    f"TASKS[{self.alias!r}] needs {app!r} in INSTALLED_APPS.",
                    id="leasing_tasks.E020",
                )

    def _check_options(self) -> Iterable[CheckMessage]:
        where = f"TASKS[{self.alias!r}]['OPTIONS']"
        for key in self.options:
            if key not in OPTIONS:
                close = difflib.get_close_matches(str(key).lower(), OPTIONS, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(OPTIONS)}."
                yield Error(f"{where} has no option {key!r}.", hint=hint, id="leasing_tasks.E021")
        most = self.options.get("max_attempts", 1)
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= 32767:
            yield Error(
                f"{where}['max_attempts'] must be a whole number from 1 to 32767.",
                id="leasing_tasks.E022",
            )
        if not _is_duration(self.options.get("timeout", 1)):
            yield Error(
                f"{where}['timeout'] must be a timedelta or a number of seconds, above 0.",
                id="leasing_tasks.E024",
            )
        if isinstance(self.options.get("modules", ()), str):
            yield Error(f"{where}['modules'] must be a list of modules.", id="leasing_tasks.E025")

    def _check_queues(self) -> Iterable[CheckMessage]:
        for queue in sorted(self.queues - set(task_settings.QUEUES)):
            yield Error(
                f"TASKS[{self.alias!r}]['QUEUES'] lists the queue {queue!r}, which is not in "
                "TASK_QUEUE['QUEUES'].",
                hint="Add it to TASK_QUEUE['QUEUES'], which lists all queues.",
                id="leasing_tasks.E023",
            )


def _is_duration(value: object) -> bool:
    if isinstance(value, timedelta):
        return value > timedelta(0)
    return is_number(value) and value > 0


def _key(result_id: object) -> int | None:
    """The key that ``result_id`` stands for; None where it stands for none."""
    text = str(result_id)
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_KEY)):
        return None
    key = int(text)
    return key if text == str(key) else None
