"""System checks: of settings and databases, and for ``--deploy``."""

from __future__ import annotations

from tasks.checks import deploy, settings


def register_all() -> None:
    """Let Django run the checks."""
    settings.register_all()
    deploy.register_all()
