"""A durable task queue whose running tasks are leased rows.

from tasks import Context, handler

@handler("reports.build")
def build(ctx: Context, report_id: int) -> None:
    ...

build.enqueue(report_id=42)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.execution.context import Context
    from tasks.registry import handler
    from tasks.scheduling.declarations import schedule
    from tasks.waiting import await_for, wait_for

__all__ = ["Context", "await_for", "handler", "schedule", "wait_for"]

# Models can be imported only once the apps are loaded, and this module is imported before; and by
# programs with ``tasks.client`` alone, which may have no Django.
_MODULES = {
    "Context": "tasks.execution.context",
    "await_for": "tasks.waiting",
    "handler": "tasks.registry",
    "schedule": "tasks.scheduling.declarations",
    "wait_for": "tasks.waiting",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
