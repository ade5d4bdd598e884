"""What a holder says on the way: progress, checkpoints, steps that are done.

None of it looks at the clock: while the grant is the row's and the row is running, nobody else
has had the task, so what a late holder says then is still the latest there is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import F

from leasing.functions import DbNow
from leasing.validation.names import check_name
from tasks.payload import check_json
from tasks.querysets.base import TaskRows, step_model

if TYPE_CHECKING:
    from tasks.models import Task, TaskStep


class Progressing(TaskRows):
    """What a holder says on the way."""

    def progress(self, task: Task, value: Any = None) -> Task:
        """Store ``value``, any JSON, as how far ``task`` is; None leaves what was stored and
        says only that it moves. One statement. Raises LeaseLost, NotSerializable.
        """
        rows = self.home(task)
        said = _said(value)
        if not rows._of_grant(task).update(progressed_at=DbNow(), **said):
            raise rows._refuse(task, "progress")
        _set(task, said)
        return task

    def checkpoint(self, task: Task, state: Any, *, progress: Any = None) -> Task:
        """Store ``state``, any JSON, for later attempts to go on from, and ``progress`` with it.

        It never falls back: an attempt that lost its task is refused. One statement. Raises
        LeaseLost, NotSerializable.
        """
        rows = self.home(task)
        said = {"checkpoint": check_json(state, "checkpoint"), **_said(progress)}
        count = F("checkpoints") + 1
        mine = rows._of_grant(task)
        if not mine.update(progressed_at=DbNow(), checkpoints=count, **said):
            raise rows._refuse(task, "checkpoint")
        _set(task, said)
        task.checkpoints += 1
        return task

    def step(self, task: Task, name: str) -> TaskStep | None:
        """The step of ``task`` called ``name``, if any attempt has finished it."""
        steps = step_model()._default_manager.using(self.home(task).db)
        step: TaskStep | None = steps.filter(task_id=task.pk, name=name).first()
        return step

    def finish_step(
        self, task: Task, name: str, output: Any = None, *, progress: Any = None
    ) -> TaskStep:
        """Store that the step called ``name`` is done, its ``output``, and ``progress`` with
        it. The first to be stored counts, and is returned.

        Raises LeaseLost, NotSerializable, InvalidResource (the name).
        """
        rows = self.home(task)
        check_name(name, "name of the step")
        said = _said(progress)
        # As later attempts will read it: a tuple comes back as a list.
        stored = json.loads(json.dumps(check_json(output, "output of the step")))
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            moved = rows._of_grant(task).update(progressed_at=DbNow(), **said)
            if moved:
                steps = step_model()._default_manager.using(rows.db)
                known = {"task_id": task.pk, "name": name}
                step: TaskStep = steps.get_or_create(**known, defaults={"output": stored})[0]
        if not moved:
            raise rows._refuse(task, "step")
        _set(task, said)
        return step


def _said(value: Any) -> dict[str, Any]:
    return {} if value is None else {"progress": check_json(value, "progress")}


def _set(task: Task, columns: dict[str, Any]) -> None:
    for name, value in columns.items():
        setattr(task, name, value)
