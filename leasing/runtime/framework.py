"""The parts of Django that code shared with the clients uses, and their stand-ins.

A program that uses ``leasing.client`` or ``tasks.client`` alone may have no Django, or one that
nobody has set up. It has no settings, so the defaults hold, and no database connections.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.conf import settings
    from django.core.exceptions import SynchronousOnlyOperation
else:
    try:
        from django.conf import settings
        from django.core.exceptions import SynchronousOnlyOperation
    except ModuleNotFoundError:
        settings = SimpleNamespace(_wrapped=None, configured=False)

        class SynchronousOnlyOperation(Exception):
            """Never raised: there is no database."""


__all__ = ["SynchronousOnlyOperation", "settings"]


def close_connections() -> None:
    """Close the database connections of this thread."""
    if (connections := open_connections()) is not None:
        connections.close_all()


def close_old_connections() -> None:
    """Close the database connections of this thread that are too old or unusable."""
    if (connections := open_connections()) is not None:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


def open_connections() -> Any:
    """Return Django's connections; None if this program has none."""
    # Not imported: a program that never did has no connections, and does not wait for it.
    database: Any = sys.modules.get("django.db")
    return database.connections if database is not None and settings.configured else None
