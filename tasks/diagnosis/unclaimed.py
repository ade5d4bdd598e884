"""Diagnose a task that nobody holds."""

from __future__ import annotations

from collections.abc import Sequence

from leasing.diagnosis.base import Action, Diagnosis
from tasks.diagnosis.actions import CANCEL, RESCHEDULE


def diagnosed(
    code: str,
    severity: str,
    headline: str,
    next_: str,
    until: str,
    facts: list[tuple[str, str]],
    actions: Sequence[Action] = (RESCHEDULE, CANCEL),
) -> Diagnosis:
    """Return a diagnosis of a task without a holder. Arguments are those of ``Diagnosis``."""
    return Diagnosis(
        code, severity, headline, next_, until=until, facts=facts, actions=list(actions)
    )
