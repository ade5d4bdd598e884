"""The queryset of tasks: by their state, and every verb."""

from __future__ import annotations

from tasks.querysets.ends import EndVerbs
from tasks.querysets.operator import OperatorVerbs
from tasks.querysets.producer import ProducerVerbs
from tasks.querysets.relay import RelayVerbs
from tasks.querysets.worker import WorkerVerbs


# Type checkers give each of its bases a manager of its own.
class TaskQuerySet(  # type: ignore[override]
    ProducerVerbs, WorkerVerbs, EndVerbs, OperatorVerbs, RelayVerbs
):
    """Tasks: ``Task.objects``."""
