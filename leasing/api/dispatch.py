"""One view for threads and event loops.

Django runs a view that is a coroutine function through an event loop, under WSGI too, where that
costs more than many a request. So a view of the API is one only when it is called in an event loop:
there it is run on a thread, and what it waits for is waited for by the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from asgiref.sync import markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponseBase

from leasing.api.waiting import Waiting
from leasing.runtime.aio import adrive

View = Callable[..., HttpResponseBase]


async def _coroutine_function() -> None:
    """Show how this Python marks one."""


_MARK: Final[dict[str, Any]] = vars(markcoroutinefunction(_coroutine_function))


class Dispatch:
    """Calls ``view``, which threads run, and completes its answer where it has to wait.

    Args:
        api: The API, for ``bad_request``.
        view: Answers a request.
        complete: Answers it with the result of what it waited for, or an error.
    """

    # The API asks for the token itself, of those who come with a session.
    csrf_exempt = True

    def __init__(
        self,
        api: Any,
        view: View,
        complete: Callable[[HttpRequest, Callable[[], Any]], HttpResponseBase],
    ) -> None:
        self.api = api
        self._view = view
        self._complete = complete

    def __getattr__(self, name: str) -> Any:
        if name in _MARK and _in_event_loop():
            return _MARK[name]
        raise AttributeError(name)

    def __call__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if _in_event_loop():
            return self._answer_in_loop(request, *args, **kwargs)
        return self._view(request, *args, **kwargs)

    async def _answer_in_loop(
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        response = await sync_to_async(self._view)(request, *args, **kwargs)
        if not isinstance(response, Waiting):
            return response
        waiting, error = response, None
        result = None
        try:
            result = await adrive(waiting.steps)
        except Exception as raised:
            error = raised

        def outcome() -> Any:
            if error is not None:
                raise error
            return waiting.answer(result)

        try:
            return await sync_to_async(self._complete)(request, outcome)
        finally:
            error = None  # or it would have itself in its traceback


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
