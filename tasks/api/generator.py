"""Routes of the generator, compatible with the public sample service."""

from __future__ import annotations

from typing import Literal

from django.http import HttpRequest
from ninja import Router, Status
from pydantic import ConfigDict

from leasing.api.access import Access, caller
from leasing.api.bodies import BothSpellings
from leasing.api.errors import answers
from tasks.api.visibility import VIEW
from tasks.generator import GeneratorStatus, generator_status, start_generator, stop_generator

may_see, may_control = Access(VIEW), Access("leasing_tasks.control_generator")

router = Router(tags=["generator"])


class GeneratorOut(BothSpellings):
    """The desired and the actual state of the generator."""

    model_config = ConfigDict(from_attributes=True)

    is_running: bool
    status: Literal["STARTED", "RUNNING", "STOPPED"]
    message: str


@router.post(
    "/generator/start",
    auth=may_control,
    response=answers({200: GeneratorOut, 409: GeneratorOut}),
)
def start(request: HttpRequest) -> Status[GeneratorOut]:
    """Set the desired state to running. 200 also if it was that already; 409 if someone stopped it
    again at the same moment."""
    return _answer(start_generator(by=caller(request), via="api"), running=True)


@router.delete(
    "/generator/stop",
    auth=may_control,
    response=answers({200: GeneratorOut, 409: GeneratorOut}),
)
def stop(request: HttpRequest) -> Status[GeneratorOut]:
    """Set the desired state to stopped: no task is generated after the answer. 409 if someone
    started it again at the same moment."""
    return _answer(stop_generator(by=caller(request), via="api"), running=False)


@router.get("/generator/status", auth=may_see, response=answers({200: GeneratorOut}))
def status(request: HttpRequest) -> Status[GeneratorOut]:
    """Return the status: STARTED is desired but not generating yet, RUNNING is generating, else
    STOPPED."""
    current = generator_status()
    return _answer(current, running=current.status != "STOPPED")


def _answer(current: GeneratorStatus, *, running: bool) -> Status[GeneratorOut]:
    """Return 200 if the desired state is still the requested one, ``running`` or not; else 409."""
    is_unchanged = (current.status != "STOPPED") == running
    return Status(200 if is_unchanged else 409, GeneratorOut.model_validate(current))
