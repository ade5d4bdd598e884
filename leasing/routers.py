"""A database router for projects that keep leases and tasks in a database of their own.

    LEASING = {"DATABASE": "queue"}
    DATABASE_ROUTERS = ["leasing.routers.LeasingRouter"]

Verbs and querysets know the setting by themselves; what Django does with our models (``save()``,
the admin's transactions, related managers) asks routers.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Model

from leasing.db.routing import is_ours, written_to


class LeasingRouter:
    """Sends our models where LEASING["DATABASE"] says, and has no opinion of any other."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return written_to(model, None, hints) if is_ours(model) else None

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        return self.db_for_read(model, **hints)
