"""One view for threads and event loops.

Django runs a view that is a coroutine function in an event loop, even under WSGI, where that costs
more than many a request. So a view of the API looks like a coroutine function only inside an event
loop: there a thread runs the view, and if the view has to wait, the event loop does the waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from asgiref.sync import AsyncToSync, SyncToAsync, markcoroutinefunction, sync_to_async
from django.db import connections
from django.http import HttpRequest, HttpResponseBase

from leasing.api.waiting import Waiting
from leasing.runtime.aio import adrive

View = Callable[..., HttpResponseBase]


async def _coroutine_function() -> None:
    """Show how this version of Python marks a coroutine function."""


_MARK: Final[dict[str, Any]] = vars(markcoroutinefunction(_coroutine_function))


class Dispatch:
    """Calls ``view`` on a thread, and completes its answer if the answer has to wait.

    Args:
        api: The API, for ``bad_request``.
        view: Answers a request.
        complete: Answers the request with the result of its wait, or with an error.
    """

    # Access itself checks the CSRF token, if the request has a session.
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
        response = await sync_to_async(self._begin)(request, *args, **kwargs)
        if not isinstance(response, Waiting):
            return response
        waiting, error = response, None
        result = None
        try:
            with waiting.steps() as steps:
                _end_request_thread()
                result = await adrive(steps)
        except Exception as raised:
            error = raised

        def outcome() -> Any:
            if error is not None:
                raise error
            return waiting.answer(result)

        try:
            return await sync_to_async(self._complete)(request, outcome)
        finally:
            error = None  # breaks the cycle of the error and its traceback

    def _begin(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = self._view(request, *args, **kwargs)
        if isinstance(response, Waiting):
            # Django would keep the connections open until the request ends.
            for connection in connections.all(initialized_only=True):
                if not connection.in_atomic_block:  # a test of the site may have one open
                    connection.close()
        return response


def _end_request_thread() -> None:
    """End the thread on which Django runs the synchronous parts of this request; Django starts
    another thread for the next synchronous part. asgiref has no public call for this; if its
    attributes change, the threads stay."""
    with suppress(AttributeError):
        context = SyncToAsync.thread_sensitive_context.get(None)
        if context is None or getattr(context, "_executor", None):
            return  # the thread is not of this request alone
        if getattr(AsyncToSync.executors, "current", None):
            return  # a synchronous middleware waits on it for this view
        executor = SyncToAsync.context_to_thread_executor.pop(context, None)
        if executor is not None:
            executor.shutdown(wait=False)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
