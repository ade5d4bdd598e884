"""Introduce a worker in its terminal: what it serves, what it found, how it stops."""

from __future__ import annotations

import sys

from django.apps import apps

from leasing.db.routing import OWN_APPS
from tasks.diagnosis.slots import Slots
from tasks.registry import Kind
from tasks.sample import own_handlers
from tasks.scheduling import declarations
from tasks.worker.process import Until, WorkerProcess

#: Names of handlers and schedules that are listed.
MAX_NAMED = 12
STOP = "Ctrl-C or SIGTERM"
ENDS = {
    Until.ONCE: "by itself, once the tasks that are ready have run",
    Until.DRAINED: "by itself, once no task of its queues is due or running in any worker",
}


def facts(worker: WorkerProcess) -> dict[str, str]:
    """Return the lines of the table about ``worker``."""
    executors = worker.executors
    ends = {"ends": ENDS[worker.until]} if worker.until in ENDS else {}
    return {
        "queues": ", ".join(worker.queues),
        "slots": ", ".join(Slots(kind, executors[kind].slots).words for kind in Kind),
        "handlers": _named(own_handlers()),
        "schedules": _named([each.name for each in declarations.declared()]),
        **ends,
        "stop": f"{STOP}: running tasks have {worker.stop_timeout:g} s, none after a second signal",
    }


def no_handler_reason() -> str:
    """Return a sentence with the places in which no handler was found; empty if any was."""
    if own_handlers():
        return ""
    searched = [
        f"{app.name}.tasks"
        for app in apps.get_app_configs()
        if app.label not in OWN_APPS and not app.name.startswith("django.")
    ]
    own = [
        f"{name} ({'no handler in it' if name in sys.modules else 'missing'})" for name in searched
    ]
    where = ", ".join(own) or "INSTALLED_APPS lists no app of your own"
    return (
        "No handler was found: this worker cannot run any task of your own. Handlers are looked "
        f"for in the module tasks.py of each app in INSTALLED_APPS: {where}."
    )


def _named(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{len(names)}: {', '.join(names[:MAX_NAMED])}{more}"
