"""Act on rows that a command names, by the actions of the pages and the admin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import CommandError

from leasing.dashboard.operator_actions import ActionOutcome, FormData, OperatorAction
from leasing.humanize import plural
from leasing.management.subcommands import operator
from leasing.runtime.terminal import plain
from tasks.models import Queue, Schedule


def perform(
    action: OperatorAction,
    rows: Any,
    keys: Iterable[Any],
    options: Mapping[str, Any],
    said: FormData | None = None,
) -> ActionOutcome:
    """Do ``action`` to those of ``rows`` with these ``keys``.

    Args:
        action: The action.
        rows: The rows of the model.
        keys: Their keys.
        options: Those of ``add_operator``.
        said: The cleaned form of the action, except the reason.
    """
    try:
        return action.perform(
            rows,
            dict.fromkeys(keys),
            {**(said or {}), "reason": options["reason"]},
            user=operator(options),
            via="command",
        )
    except action.refusals as error:
        raise CommandError(str(error)) from error


def why_paused(row: Queue | Schedule) -> str:
    """Return who paused ``row`` and why: "by olga: month end"; empty if it is not paused."""
    by = f"by {row.paused_by}" if row.paused_by else ""
    return plain(": ".join(part for part in (by, row.reason) if part))


def report(outcome: ActionOutcome, noun: str, past: str) -> tuple[dict[str, Any], str]:
    """Return the outcome of an action as JSON and as text: "1 queue paused. Not changed: 1 already
    paused".

    Args:
        outcome: The outcome, as ``perform`` returns it.
        noun: The noun for one row, in the singular.
        past: The past tense of the action, which is also the name of the number in JSON.
    """
    facts: dict[str, Any] = {past: outcome.changed}
    text = f"{plural(outcome.changed, noun)} {past}"
    if outcome.skipped:
        facts["skipped"] = dict(outcome.skipped)
        text += f". Not changed: {outcome.reasons}"
    return facts, text
