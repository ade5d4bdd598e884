"""System checks: of settings and databases, and for ``--deploy``. Each is registered as its module
is imported."""

from __future__ import annotations

from tasks.checks import deploy, settings  # noqa: F401
