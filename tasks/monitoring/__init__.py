"""Files for Prometheus and Grafana: ``alerts.yml`` and ``dashboard.json``, in this folder."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

#: The folder of the runbook, in this project's repository.
RUNBOOK: Final = "docs/runbook"


def alerts(runbook: str = RUNBOOK) -> str:
    """The rules, in YAML. ``runbook`` is the address under which its pages are kept."""
    text = _read("alerts.yml")
    return text.replace(f"runbook_url: {RUNBOOK}/", f"runbook_url: {runbook.rstrip('/')}/")


def dashboard() -> str:
    """The dashboard, in Grafana's JSON."""
    return _read("dashboard.json")


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
