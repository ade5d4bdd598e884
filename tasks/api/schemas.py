"""Schemas of responses about tasks."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from leasing.api.bodies import BothSpellings, Keywords, Moment, Name
from leasing.api.keys import TermOut
from leasing.api.lists import Page
from leasing.validation.values import check_moment
from tasks.models import Task

#: ISO 8601 with a time zone. Pydantic reads more, such as seconds since 1970 in a string.
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII
)


def _only_text(value: object) -> object:
    if not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError("must be a string: ISO 8601 with a time zone")
    return value


def _storable(moment: datetime) -> datetime:
    if not 1970 <= moment.year <= 9998:
        raise ValueError("the year must be from 1970 to 9998")
    return check_moment(moment, "it")


MomentIn = Annotated[
    AwareDatetime,
    Field(strict=False),
    BeforeValidator(_only_text),
    AfterValidator(_storable),
    Keywords(description="From 1970 to 9998, with a time zone."),
]

#: Names that the site knows; other texts of the same form are refused.
HandlerName = Annotated[Name, Keywords(format="handler")]
QueueName = Annotated[Name, Keywords(format="queue")]


class TaskOut(BothSpellings):
    """A task with its lease. ``processor`` is the holder."""

    SAMPLE: ClassVar[dict[str, str]] = {
        "last_heartbeat_at": "lastHeartBeatAt",
        "must_heartbeat_before": "mustHeartBeatBefore",
    }

    id: int = Field(examples=[17])
    name: str = Field(description="The name of its handler.", examples=["sample.sleep"])
    queue: str = Field(examples=["default"])
    status: str = Field(
        description="ready (scheduled and waiting for a retry too: see scheduled_at), running, "
        "succeeded, failed or cancelled.",
        examples=["running"],
    )
    priority: int = Field(description="Higher runs first.", examples=[0])
    attempts: int = Field(description="Counted at each claim.", examples=[1])
    max_attempts: int = Field(examples=[10])
    task_data: Any = Field(examples=[{"sleep_duration_seconds": 1}])
    scheduled_at: Moment
    created_at: Moment
    processor: str | None = Field(description="The holder, or the latest.", examples=["worker-9"])
    last_heartbeat_at: Moment | None = Field(
        description="The latest heartbeat; before the first, the claim."
    )
    must_heartbeat_before: Moment | None = Field(description="The deadline of the lease.")
    started_at: Moment | None = Field(description="The first claim.")
    processed_at: Moment | None = Field(description="The time at which it ended, in any state.")
    task_output: Any
    progress: Any = Field(description="The latest progress of its handler.")
    last_error: str
    cancel_requested_at: Moment | None = Field(
        description="Cancellation was requested: the holder should stop."
    )
    fencing_token: int = Field(
        description="Increases with every grant and never decreases.", examples=[1769860800000000]
    )
    grants: int = Field(description="Number of grants.", examples=[1])


#: Fields of it that are columns of a task, by the same names.
_COLUMNS = TaskOut.model_fields.keys() - {
    "processor",
    "last_heartbeat_at",
    "must_heartbeat_before",
}


def fields_of(task: Task) -> dict[str, Any]:
    """Return the fields of ``TaskOut`` for all of ``task``, as it was read:
    ``tasks.api.visibility`` says who is shown it."""
    return {
        **{name: getattr(task, name) for name in _COLUMNS},
        "processor": task.holder or None,
        "last_heartbeat_at": task.renewed_at or task.acquired_at,
        "must_heartbeat_before": task.expires_at if task.grants else None,
    }


class HeldTask(TaskOut, TermOut):
    """A task, as its holder sees it."""


class ClaimedTask(HeldTask):
    """A task, for the client that has just claimed it."""

    checkpoint: Any = Field(description="The state stored by the latest attempt.")
    checkpoints: int = Field(description="Number of checkpoints that were stored.", examples=[0])
    timeout: float | None = Field(
        description="Seconds that one attempt may run, if the task has a limit of its own: its "
        "holder should then fail it.",
        examples=[600],
    )


class ClaimedTasks(BaseModel):
    """The tasks that were claimed together, in the order of their queue."""

    tasks: list[ClaimedTask]


class TaskAnswer(BaseModel):
    """One task."""

    task: TaskOut


class TaskList(Page):
    """A page of tasks."""

    tasks: list[TaskOut]


class ActionOut(BaseModel):
    """An operator's action, and its consequence."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    label: str
    consequence: str
    permission: str


class DiagnosisOut(BaseModel):
    """The diagnosis of a task: the reason for its state, and what can be done."""

    id: int
    code: str
    severity: Literal["ok", "info", "warning", "critical"]
    headline: str = Field(description="Status.")
    who: str = Field(description="Holder.")
    until: str = Field(description="Deadline.")
    next: str = Field(description="What happens next without intervention.")
    facts: dict[str, str]
    actions: list[ActionOut]


class TraceEventOut(BaseModel):
    """An event in the life of a task."""

    model_config = ConfigDict(from_attributes=True)

    at: Moment = Field(description="By the database's clock.")
    event: str = Field(
        description="enqueued, claimed, renewed, progress, step, failed, lost, returned, snoozed, "
        "cancelled, refused, succeeded, cancel_requested, ended, or the action of an operator.",
        examples=["claimed"],
    )
    text: str
    attempt: int | None
    holder: str
    fencing_token: int | None


class TraceOut(BaseModel):
    """The recorded events of a task, the oldest first."""

    id: int
    events: list[TraceEventOut]


class StuckTask(BaseModel):
    """A stuck task with its diagnosis."""

    task: TaskOut
    diagnosis: DiagnosisOut


class AttemptOut(BaseModel):
    """An unsuccessful attempt."""

    number: int
    outcome: str = Field(description="failed, lost, returned, snoozed or cancelled.")
    holder: str
    started_at: Moment
    ended_at: Moment
    fencing_token: int
    error: str
    exception: str = Field(description="The class of the error, by its dotted path.")
    traceback: str | None = Field(description="Null for clients that may not see payloads.")
    refused_at: Moment | None = Field(description="A late write of this attempt was refused.")
    refused_verb: str
