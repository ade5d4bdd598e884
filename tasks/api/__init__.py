"""The JSON API of tasks: mount ``router`` on a ``leasing.api.LeasingAPI``."""

from __future__ import annotations

from tasks.api.routes import router

__all__ = ["router"]
