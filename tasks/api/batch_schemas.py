"""Schemas of requests and responses about batches of tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from leasing.api.bodies import WHOLE, Name, Request, Sparse, Text
from leasing.api.keys import HoldersRequest
from leasing.api.schemas import MAX_REASON
from leasing.validation.names import MAX_TASKS
from tasks.api.holders import HasError, HasOutput
from tasks.bounds import LONGEST_DELAY


class One(HoldersRequest):
    """A task of a batch."""

    id: Annotated[int, WHOLE] = Field(ge=1, le=2**63 - 1, examples=[17])


class Completion(HasOutput, One):
    """The outcome of a task."""


class Failure(HasError, One):
    """The error with which an attempt of a task failed."""


class Return(One):
    """A task that its holder does not run to its end."""

    reason: Text = Field(
        "given back by its holder",
        min_length=1,
        max_length=MAX_REASON,
        examples=["its worker was stopped"],
    )
    delay: float = Field(
        0, ge=0, le=LONGEST_DELAY.total_seconds(), description="Seconds until it may start again."
    )
    begun: bool = Field(
        True, description="False if it was never started: its history does not mention it then."
    )


class Many(Request):
    """Tasks of one holder, or of several that each prove their grants."""

    processor: Name | None = Field(
        None,
        description="The name of the holder, for tasks without a lease_key.",
        examples=["worker-9"],
    )


class Heartbeats(Many):
    """Tasks whose leases to renew."""

    tasks: list[One] = Field(min_length=1, max_length=MAX_TASKS)


class Completions(Many):
    """Tasks to complete."""

    tasks: list[Completion] = Field(min_length=1, max_length=MAX_TASKS)


class Failures(Many):
    """Tasks of which an attempt failed."""

    tasks: list[Failure] = Field(min_length=1, max_length=MAX_TASKS)


class Returns(Many):
    """Tasks to give back."""

    tasks: list[Return] = Field(min_length=1, max_length=MAX_TASKS)


class Result(BaseModel):
    """The result for one task."""

    id: int
    status: int = Field(
        description="As for a single request: 202 done; 200 not found, or not "
        "assigned to the processor; 409 ended, lost, or a wrong lease_key; 400."
    )
    message: str | None = None
    error: str | None = None


class Ended(Result):
    """The result of completing or failing one task."""

    state: str | None = Field(None, description="The status of the task afterwards.")


class HeartbeatResult(Result):
    """The result of one heartbeat."""

    ttl: float | None = None
    remaining: float | None = Field(
        None, description="Seconds until the deadline, by the database's clock."
    )
    yield_to: str | None = Field(
        None,
        description="The user who asked to cancel the task, or empty. The holder should then stop.",
    )
    is_last: bool | None = None


class EndedMany(Sparse):
    """The results of a batch, in the order of the request."""

    results: list[Ended]


class HeartbeatResults(Sparse):
    """The results of a batch, in the order of the request."""

    results: list[HeartbeatResult]
