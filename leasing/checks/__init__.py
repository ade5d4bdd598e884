"""System checks: settings, databases, the module ``tasks``, LOGIN_URL, the API; ``--deploy``."""

from __future__ import annotations

from leasing.checks import api, deploy, login, queue_module, settings
from leasing.checks.queue_module import refuse_missing_apps, refuse_missing_backends

__all__ = ["refuse_missing_apps", "refuse_missing_backends", "register_all"]


def register_all() -> None:
    """Register the checks with Django."""
    settings.register_all()
    queue_module.register_all()
    login.register_all()
    deploy.register_all()
    api.register_all()
