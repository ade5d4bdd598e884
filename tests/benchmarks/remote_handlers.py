"""The handlers of a remote worker: ``python -m tasks.client ... remote_handlers.py``."""

from __future__ import annotations

import os
from typing import Any

from tasks.client import Context, handler


@handler("bench.nothing")
def nothing(ctx: Context, **data: Any) -> dict[str, Any]:
    """One system call, and a small result."""
    os.access("/", os.F_OK)
    return {"ok": True}
