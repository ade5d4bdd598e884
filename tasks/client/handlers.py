"""The handlers of a remote worker, by the names of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from tasks.bounds import check_delay
from tasks.exceptions import UnknownTask

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that runs tasks of one name."""

    name: str
    function: Callable[..., Any]
    #: Seconds that an attempt may run, unless the task has a limit of its own; None: no limit.
    timeout: float | None

    @property
    def is_async(self) -> bool:
        """Return True if it is a coroutine function."""
        return asyncio.iscoroutinefunction(self.function)


class Handlers:
    """Handlers by their names. A worker runs those of one such object."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def handler(
        self, name: str, *, timeout: float | timedelta | None = None
    ) -> Callable[[Function], Function]:
        """Register a function, plain or ``async``, as the handler of the tasks called ``name``. It
        is called with a context and the data of the task: ``def build(ctx, report_id)``.

        Args:
            name: The name of the tasks; the service knows them too.
            timeout: Seconds that an attempt may run; None: no limit.
        """
        if not isinstance(name, str):
            raise TypeError('Name the tasks: @handler("reports.build").')
        limit = None if timeout is None else check_delay(timeout, "The timeout").total_seconds()

        def register(function: Function) -> Function:
            if name in self._handlers:
                raise ValueError(f"{name!r} has a handler already.")
            self._handlers[name] = Handler(name, function, limit)
            return function

        return register

    def find(self, name: str) -> Handler:
        """Return the handler of the tasks called ``name``. Raises UnknownTask."""
        try:
            return self._handlers[name]
        except KeyError:
            raise UnknownTask(f"No handler is registered for {name!r}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


#: The handlers of this process, which a worker runs unless it is given others.
handlers = Handlers()
handler = handlers.handler
