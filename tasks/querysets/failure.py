"""Attempts that failed, before they are stored: their texts, and the pause before the next."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import TYPE_CHECKING

from tasks import registry
from tasks.exceptions import GiveUp, TaskError, UnknownTask
from tasks.retry import decide, usual

if TYPE_CHECKING:
    from tasks.models import Task


class FinalError(str):
    """The text of an error that a client reports, after which there is to be no other attempt."""

    __slots__ = ()


def pause_after(task: Task, error: BaseException | str) -> timedelta | None:
    """Return the time until the next attempt; None: there is to be none. It asks the policy: code
    of others, that no lock should wait for."""
    if isinstance(error, GiveUp | FinalError):
        return None
    try:
        policy = registry.find(task.name).retry
    except UnknownTask:
        policy = None
    seen = error if isinstance(error, BaseException) else TaskError(error)
    return decide(policy or usual, seen, task.attempts)


def described(error: BaseException | str) -> tuple[str, str, str]:
    """Return the error in a line, its traceback, and the dotted path of its class, as far as there
    are such; free of what a database cannot store."""
    if isinstance(error, str):
        return storable(error), "", ""
    kind = type(error)
    try:
        said = str(error)
    except Exception:  # an error of the error's own
        said = ""
    text = f"{kind.__name__}: {said}" if said else kind.__name__
    trace = "".join(traceback.format_exception(error))
    return storable(text), storable(trace), f"{kind.__module__}.{kind.__qualname__}"


def storable(text: str) -> str:
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= 20_000 else clean[:10_000] + "\n...\n" + clean[-10_000:]
