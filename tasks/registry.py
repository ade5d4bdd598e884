"""Names of tasks and the code they stand for.

Only what was registered can run: a row's name is looked up here and never imported. Modules
named ``tasks.py`` of the installed apps are imported at start, so ``@handler`` in them counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from leasing.names import check_name
from tasks.exceptions import UnknownTask

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Handler:
    """Registered code: ``function(ctx, **data)``, plain or async."""

    name: str
    function: Callable[..., Any]
    queue: str
    max_attempts: int | None


_handlers: dict[str, Handler] = {}


def handler(
    name: str, *, queue: str = "default", max_attempts: int | None = None
) -> Callable[[Function], Function]:
    """Register the decorated function as what runs tasks called ``name``.

    It is called with a ``Context`` and the task's data as keyword arguments, and returns JSON.
    ``queue`` and ``max_attempts`` are the defaults of its tasks; None is
    TASK_QUEUE["MAX_ATTEMPTS"].

    Raises ValueError when the name stands for other code already.
    """
    check_name(name, "name of the task")
    if max_attempts is not None and not 1 <= max_attempts <= 32767:
        raise ValueError("max_attempts must be a whole number from 1 to 32767.")

    def register(function: Function) -> Function:
        known = _handlers.get(name)
        if known is not None and _place(known.function) != _place(function):
            raise ValueError(f"{name!r} is the name of {_place(known.function)} already.")
        _handlers[name] = Handler(name, function, queue, max_attempts)
        return function

    return register


def find(name_or_function: str | Callable[..., Any]) -> Handler:
    """The handler of that name, or the one made of that function.

    Raises UnknownTask.
    """
    if isinstance(name_or_function, str):
        if name_or_function in _handlers:
            return _handlers[name_or_function]
    else:
        for known in _handlers.values():
            if known.function is name_or_function:
                return known
    raise UnknownTask(f"No handler is registered for {name_or_function!r}.")


def names() -> list[str]:
    """The names of all tasks that can run here."""
    return sorted(_handlers)


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
