"""A durable task queue whose running tasks are leased rows.

from tasks import Context, handler

@handler("reports.build")
def build(ctx: Context, report_id: int) -> None:
    ...

build.enqueue(report_id=42)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.registry import handler
from tasks.scheduling.declarations import schedule

if TYPE_CHECKING:
    from tasks.execution.context import Context

__all__ = ["Context", "handler", "schedule"]


def __getattr__(name: str) -> Any:
    # Django imports this module before models can be, and settings may be read while it does.
    if name == "Context":
        from tasks.execution.context import Context

        return Context
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
