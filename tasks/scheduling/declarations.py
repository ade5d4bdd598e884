"""Schedules that code declares: what ``@schedule`` says, until a scheduler stores it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from leasing.validation.names import check_name
from tasks import registry
from tasks.exceptions import InvalidSchedule, UnknownTask
from tasks.payload import check_data
from tasks.scheduling.rules import MissedSlots, rule_of

Function = TypeVar("Function", bound=Callable[..., Any])
Duration = float | timedelta

#: The length of a name that its unique key leaves room for.
LONGEST_NAME = 190


@dataclass(frozen=True)
class Declaration:
    """The columns of a schedule that belong to the code which declares it."""

    name: str
    task_name: str
    task_data: dict[str, Any]
    queue: str
    priority: int
    cron: str
    every: timedelta | None
    timezone: str
    missed: str
    overlap: bool

    def columns(self) -> dict[str, Any]:
        """All of them but the name, by which the row is found."""
        columns = asdict(self)
        del columns["name"]
        return columns


_declared: dict[str, Declaration] = {}


def schedule(
    name: str | None = None,
    task: str | Callable[..., Any] | None = None,
    *,
    cron: str = "",
    every: Duration | None = None,
    timezone: str = "UTC",
    data: dict[str, Any] | None = None,
    queue: str | None = None,
    priority: int = 0,
    missed: str = "latest",
    overlap: bool = True,
) -> Callable[[Function], Function]:
    """Declare that a task is enqueued at due times: ``@schedule(cron="0 3 * * *")`` above
    ``@handler``, or ``schedule("nightly", "reports.build", cron="0 3 * * *")``.

    Args:
        name: The name of the schedule; by default that of its task.
        task: The name of the task, or its handler.
        cron: Five fields, in ``timezone``; else ``every``.
        every: Seconds between two due times (1 to ten years); else ``cron``.
        timezone: The time zone of ``cron``.
        data: The data of each task.
        queue: The queue of each task.
        priority: The priority of each task.
        missed: The due times to catch up on after a time without workers: "skip" (none), "latest",
            "all".
        overlap: False to skip a due time while the previous task has not ended.

    Raises InvalidSchedule (also when the name is already used by another schedule), InvalidResource
    (a name), NotSerializable.
    """

    def declare(target: str | Callable[..., Any]) -> None:
        task_name = _task_name(target)
        _add(
            Declaration(
                name=_check_name(task_name if name is None else name),
                task_name=task_name,
                # As JSON gives it back, to be compared with the row's.
                task_data=json.loads(json.dumps(check_data(data))),
                queue=check_name(queue, "queue") if queue else "",
                priority=_check_priority(priority),
                cron=cron,
                every=_duration(every),
                timezone=timezone,
                missed=_check_missed(missed),
                overlap=overlap,
            )
        )

    def decorate(function: Function) -> Function:
        declare(function)
        return function

    if task is not None:
        declare(task)
    return decorate


def declared() -> list[Declaration]:
    """All that the code of this process declares, by name."""
    return [_declared[name] for name in sorted(_declared)]


def _add(declaration: Declaration) -> None:
    rule_of(declaration.cron, declaration.every, declaration.timezone)
    if _declared.get(declaration.name, declaration) != declaration:
        raise InvalidSchedule(f"Schedule name {declaration.name!r} is already used.")
    _declared[declaration.name] = declaration


def _task_name(task: str | Callable[..., Any]) -> str:
    if isinstance(task, str):
        # Its handler may be registered later: a system check looks for it.
        return check_name(task, "name of the task")
    try:
        return registry.find(task).name
    except UnknownTask as error:
        raise InvalidSchedule(f"{error} Put @schedule above @handler.") from error


def _check_name(name: str) -> str:
    if len(check_name(name, "name of the schedule")) > LONGEST_NAME:
        raise InvalidSchedule(f"The name of a schedule must not exceed {LONGEST_NAME} characters.")
    return name


def _check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not -32768 <= priority <= 32767:
        raise InvalidSchedule("The priority must be a whole number from -32768 to 32767.")
    return priority


def _check_missed(missed: str) -> str:
    if missed not in MissedSlots.values:
        raise InvalidSchedule(f"missed must be one of {', '.join(MissedSlots.values)}.")
    return str(MissedSlots(missed).value)


def _duration(every: Duration | None) -> timedelta | None:
    return every if every is None or isinstance(every, timedelta) else timedelta(seconds=every)
