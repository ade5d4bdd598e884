"""Imports the modules in which tasks are declared, so that workers know them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import global_settings, settings
from django.utils.module_loading import autodiscover_modules

if TYPE_CHECKING:
    from tasks.backend import DatabaseBackend


def discover() -> None:
    """Import ``tasks.py`` of every app, and the option ``modules`` of each backend in TASKS."""
    autodiscover_modules("tasks")
    if own := backends():
        from tasks.django_api.bridge import declare_all

        names = [name for each in own for name in each.options.get("modules", ())]
        modules = [import_module(name) for name in names]
        found = [sys.modules.get(f"{app.name}.tasks") for app in apps.get_app_configs()]
        declare_all([*modules, *filter(None, found)])


def backends() -> list[DatabaseBackend]:
    """Return the backends of Django's tasks that store tasks in this queue."""
    chosen: dict[str, Any] | None = getattr(settings, "TASKS", None)
    if not chosen or chosen is getattr(global_settings, "TASKS", None) or not _tasks_exist():
        return []
    from tasks.backend import DatabaseBackend
    from tasks.django_api.compat import InvalidTaskBackend, task_backends

    found = []
    for alias in chosen:
        try:
            backend = task_backends[alias]
        except InvalidTaskBackend:
            continue  # Django reports that itself, when it is used
        if isinstance(backend, DatabaseBackend):
            found.append(backend)
    return found


def _tasks_exist() -> bool:
    """Django 5.2 has none, unless the backport is installed."""
    return any(find_spec(name) for name in ("django.tasks", "django_tasks"))
