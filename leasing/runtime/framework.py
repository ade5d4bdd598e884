"""The parts of Django that code shared with the clients uses, and their stand-ins.

A program that uses ``leasing.client`` or ``tasks.client`` alone may have no Django, or one that
nobody has set up. It has no settings, so the defaults hold, and no database connections.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.conf import settings
    from django.core.exceptions import SynchronousOnlyOperation
else:
    try:
        from django.conf import settings
        from django.core.exceptions import SynchronousOnlyOperation
    except ModuleNotFoundError:
        settings = None

        class SynchronousOnlyOperation(Exception):
            """Never raised: there is no database."""


__all__ = ["SynchronousOnlyOperation", "settings"]


def django_setting(name: str) -> Any:
    """Return a setting of the project's; None where it is not set.

    A name that was read before takes a third of the time of ``getattr(settings, name, None)``:
    Django's settings have that as an attribute, and look at each that they hand out.
    """
    try:
        return object.__getattribute__(settings, name)
    except AttributeError:
        pass
    # Those that nobody has loaded are not loaded: in a program of the clients the environment may
    # name another project's, which cannot even be imported. Whatever needs Django has loaded them.
    if settings is None or not settings.configured:
        return None
    return getattr(settings, name, None)


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
