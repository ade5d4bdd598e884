"""Act on one row by the actions of the pages and the admin."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja.errors import HttpError

from leasing.api.access import caller
from leasing.dashboard.operator_actions import ActionOutcome, FormData, OperatorAction


def perform(
    request: HttpRequest, action: OperatorAction, rows: Any, key: Any, form_data: FormData
) -> ActionOutcome:
    """Do an action to one row, and record it in the audit. Raises HttpError 409 with the reason if
    it changes nothing.

    Args:
        request: The operator's request.
        action: The action.
        rows: The rows of the model.
        key: The key of the row.
        form_data: The fields of the action's form.
    """
    try:
        outcome = action.perform(rows, {key: None}, form_data, user=caller(request), via="api")
    except action.refusals as error:
        raise HttpError(409, str(error)) from error
    if not outcome.changed:
        reason = next(iter(outcome.skipped), "changed meanwhile")
        raise HttpError(409, f"Nothing changed: {reason}.")
    return outcome
