"""Settle keys of ``once``: give a result in place of work that was begun and left."""

from __future__ import annotations

from typing import Any, Final

from leasing.dashboard.forms import SettleForm
from leasing.dashboard.operator_actions import FormData, OperatorAction
from leasing.models import LeaseState


def _unsettleable_reason(row: Any, form_data: FormData) -> str:
    """Return why the key of ``row`` cannot be settled: "" if work was begun and left."""
    if row.finished_at is not None:
        return "already finished"
    states = {LeaseState.FREE: "never begun", LeaseState.ACTIVE: "held"}
    return states.get(row.lease_state(row.now), "")


SETTLE: Final = OperatorAction(
    "settle",
    "Settle keys",
    "Settled",
    "Give these keys a result?",
    "For one more window, calls with this key get the result and do not do the work. A late result "
    "of the run that left it is refused.",
    "leasing.settle_oncekey",
    SettleForm,
    lambda rows, form_data, by: rows.settle(form_data["result"], by),
    _unsettleable_reason,
    refusals=(ValueError,),
    of_one="Settle key",
)
