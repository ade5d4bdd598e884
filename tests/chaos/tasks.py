"""The handlers, for workers that have the database."""

from __future__ import annotations

from typing import Any

from tasks import handler, schedule
from tests.chaos.attempts import HANDLERS, work

for _name, _function in HANDLERS.items():
    handler(_name)(_function)

schedule("chaos.tick", "chaos.tick", every=1, missed="all")


@handler("chaos.in_process", process=True)
def in_process(ctx: Any, tag: str, seconds: float = 0.0, fails: int = 0) -> Any:
    """``work``, in a child process."""
    return work(ctx, tag, seconds, fails)
