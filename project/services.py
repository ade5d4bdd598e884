"""The services that this site is: the lease service, the task service, or both."""

from __future__ import annotations

from collections.abc import Collection

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

LEASES: str = "leases"
TASKS: str = "tasks"
BOTH: tuple[str, str] = (LEASES, TASKS)

#: The names of the services, each alone, for people.
_NAMES: dict[str, str] = {LEASES: "Lease service", TASKS: "Task service"}


def checked(services: Collection[str]) -> frozenset[str]:
    """Return ``services``. Raises ImproperlyConfigured if there is none, or one that is unknown."""
    given = frozenset(services)
    if not given or not given <= set(BOTH):
        raise ImproperlyConfigured(
            f'SERVICES must be "leases", "tasks" or "leases,tasks", not "{",".join(services)}".'
        )
    return given


def name_of(services: Collection[str], both: str = "") -> str:
    """Return the name of the site that is ``services``; ``both`` if it is all of them."""
    return both if len(services) > 1 else _NAMES[next(iter(services))]


def service(request: HttpRequest) -> dict[str, str]:
    """Context of every template: the name of the service, if it is alone."""
    return {"service": name_of(settings.SERVICES)}
