"""Short names of what is leased, for logs and errors."""

from __future__ import annotations

from typing import Final

#: The prefix of the resources of tasks in the API.
TASKS: Final = "/api/tasks/"


def label(resource: str) -> str:
    """Return ``task:17`` for the resource of a task, any other as it is."""
    return f"task:{resource.removeprefix(TASKS)}" if resource.startswith(TASKS) else resource
