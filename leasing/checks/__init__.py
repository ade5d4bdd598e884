"""System checks: settings, stores, databases, the module ``tasks``, LOGIN_URL, the API;
``--deploy``. Each is registered as its module is imported."""

from __future__ import annotations

from leasing.checks import deploy, login, settings, stores  # noqa: F401
from leasing.checks.queue_module import refuse_missing_apps, refuse_missing_backends

__all__ = ["refuse_missing_apps", "refuse_missing_backends"]
