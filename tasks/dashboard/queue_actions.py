"""Pause and resume queues as an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms

from leasing.dashboard.operator_actions import FormData, OperatorAction
from tasks.dashboard.forms import PauseForm
from tasks.diagnosis import RESUME
from tasks.exceptions import UnknownQueue


def _pause(rows: Any, form_data: FormData, by: str) -> int:
    return sum(rows.pause(queue.name, by=by, reason=form_data["reason"]) for queue in rows)


def _resume(rows: Any, form_data: FormData, by: str) -> int:
    return sum(rows.resume(queue.name, by=by) for queue in rows)


QUEUE_ACTIONS: Final[Mapping[str, OperatorAction]] = {
    action.name: action
    for action in (
        OperatorAction(
            "pause",
            "Pause",
            "Paused",
            "Pause these queues?",
            "No more of their tasks are claimed, whatever their handlers. Running tasks continue.",
            "leasing_tasks.pause_queue",
            PauseForm,
            _pause,
            lambda queue, form_data: "already paused" if queue.paused_at else "",
            refusals=(UnknownQueue,),
        ),
        OperatorAction(
            "resume",
            "Resume",
            "Resumed",
            "Resume these queues?",
            "Workers claim their waiting tasks again, in order.",
            RESUME.permission,
            forms.Form,
            _resume,
            lambda queue, form_data: "" if queue.paused_at else "not paused",
        ),
    )
}
