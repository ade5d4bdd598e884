"""System checks: of settings and databases, and for ``--deploy``."""

from __future__ import annotations

from tasks.checks import deploy, settings

__all__ = ["register_all"]


def register_all() -> None:
    """Register the checks with Django."""
    settings.register_all()
    deploy.register_all()
