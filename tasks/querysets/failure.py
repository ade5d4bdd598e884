"""Attempts that failed, before they are stored: their texts, and the pause before the next."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tasks import registry
from tasks.exceptions import GiveUp, TaskError, UnknownTask
from tasks.querysets.base import attempt_model
from tasks.retry import decide, usual

if TYPE_CHECKING:
    from tasks.models import Task, TaskAttempt


class FinalError(str):
    """The text of an error that a client reports, after which there is to be no other attempt."""

    __slots__ = ()


@dataclass(frozen=True)
class Failure:
    """A failed attempt of ``task``, before it is stored."""

    task: Task
    text: str
    #: The time until the next attempt; None: there is to be none.
    delay: timedelta | None
    attempt: TaskAttempt
    raised: BaseException | None

    @classmethod
    def of(cls, task: Task, error: BaseException | str) -> Failure:
        """Asks the policy: code of others, that no lock should wait for."""
        text, trace = _describe(error)
        attempt = attempt_model().of(task, "failed", text, trace, _class_path(error))
        raised = error if isinstance(error, BaseException) else None
        return cls(task, text, _delay(task, error), attempt, raised)


def _delay(task: Task, error: BaseException | str) -> timedelta | None:
    if isinstance(error, GiveUp | FinalError):
        return None
    try:
        policy = registry.find(task.name).retry
    except UnknownTask:
        policy = None
    seen = error if isinstance(error, BaseException) else TaskError(error)
    return decide(policy or usual, seen, task.attempts)


def _describe(error: BaseException | str) -> tuple[str, str]:
    """The error in a line, and its traceback; free of what a database cannot store."""
    if isinstance(error, str):
        return storable(error), ""
    try:
        said = str(error)
    except Exception:  # an error of the error's own
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return storable(text), storable("".join(traceback.format_exception(error)))


def _class_path(error: BaseException | str) -> str:
    """The dotted path of the class of ``error``; empty where there is none."""
    kind = type(error)
    return "" if isinstance(error, str) else f"{kind.__module__}.{kind.__qualname__}"


def storable(text: str) -> str:
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= 20_000 else clean[:10_000] + "\n...\n" + clean[-10_000:]
