"""Pause, resume and run schedules as an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django import forms

from leasing.dashboard.forms import ReasonForm
from leasing.dashboard.operator_actions import FormData, OperatorAction
from tasks import registry
from tasks.exceptions import TaskError
from tasks.models import Schedule

CHANGE: Final = "leasing_tasks.change_schedule"


def _run_blocked_by(schedule: Schedule, form_data: FormData) -> str:
    return "" if schedule.task_name in registry.names() else "without a handler here"


SCHEDULE_ACTIONS: Final[Mapping[str, OperatorAction]] = {
    action.name: action
    for action in (
        OperatorAction(
            "pause",
            "Pause",
            "Paused",
            "Pause these schedules?",
            "Nothing is enqueued until they are resumed; due times until then are skipped. "
            "Existing tasks run as usual.",
            CHANGE,
            ReasonForm,
            lambda rows, form_data, by: rows.pause(by=by, reason=form_data.get("reason", "")),
            lambda schedule, form_data: "already paused" if schedule.paused_at else "",
        ),
        OperatorAction(
            "resume",
            "Resume",
            "Resumed",
            "Resume these schedules?",
            "They continue at their next due times; those of the pause are skipped.",
            CHANGE,
            forms.Form,
            lambda rows, form_data, by: rows.resume(),
            lambda schedule, form_data: "" if schedule.paused_at else "not paused",
        ),
        OperatorAction(
            "run_now",
            "Run now",
            "Enqueued",
            "Enqueue the tasks of these schedules now?",
            "Each task is enqueued once; the schedule itself does not change. Skipped where the "
            "previous task has not ended and overlap is off.",
            CHANGE,
            forms.Form,
            lambda rows, form_data, by: rows.run_now(by=by),
            _run_blocked_by,
            unchanged="whose previous task has not ended",
            audited="run",
            refusals=(TaskError, ValueError),
        ),
    )
}
