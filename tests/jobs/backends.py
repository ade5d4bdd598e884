"""Another backend for Django's tasks."""

from __future__ import annotations

from typing import Any, ParamSpec, TypeVar

from tasks.django_api.compat import BaseTaskBackend, Task, TaskResult

P = ParamSpec("P")
R = TypeVar("R")


class ForgetfulBackend(BaseTaskBackend):
    """Does nothing with what it is given."""

    def enqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        raise NotImplementedError
