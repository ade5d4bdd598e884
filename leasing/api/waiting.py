"""Requests that wait: for a lease that is held, or for a task to become ready.

API_MAX_WAIT bounds the wait, which ends early when its steps are woken. The number of waiting
requests of a process is bounded too: a request that finds no free place is answered at once, as if
its wait had ended, with Retry-After.

Under WSGI a wait takes a thread, and if all threads of a process waited, nobody would be answered,
not even the request that ends the wait. So only API_WAITING_THREADS requests of a process wait at
the same time, and none if the process has only one thread.

Under ASGI a wait takes neither a thread nor a connection: the view returns ``Waiting``, and the
event loop runs its steps, with a thread for each single statement. The steps are stopped when the
client disconnects. But a wait costs some statements per second, so at most API_WAITING_REQUESTS
requests of a process wait at the same time, and at most API_WAITING_PER_CLIENT of one client.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from pydantic import Field

from leasing.api.access import caller
from leasing.api.bodies import Between
from leasing.conf import leasing_settings
from leasing.runtime.aio import Steps, drive

#: Retry-After, in seconds, for a request that finds no place to wait.
NO_PLACE = 1

#: For the body of a request that may wait.
Wait = Annotated[
    float,
    Between(0, "API_MAX_WAIT"),
    Field(description="Maximum seconds to wait if nothing is available now."),
]


class Waiting(HttpResponse):
    """An answer that is not available yet. The arguments are those of ``answer_with``."""

    def __init__(
        self,
        request: HttpRequest,
        wait: float,
        steps: Callable[[float], Steps[Any]],
        answer: Callable[[Any], Any],
    ) -> None:
        super().__init__()
        self.answer = answer
        self._request = request
        self._wait = wait
        self._steps = steps

    @contextmanager
    def steps(self) -> Iterator[Steps[Any]]:
        """Yield the steps that produce the result, for a driver in the block. The steps wait only
        if there is a free place."""
        with _place(self._request) as has_place:
            yield self._run(has_place)

    def _run(self, has_place: bool) -> Steps[Any]:
        result = yield from self._steps(self._wait if has_place else 0)
        if not (result or has_place):
            self._request.try_again_in = NO_PLACE  # type: ignore[attr-defined]
        return result


def answer_with(
    request: HttpRequest,
    wait: float,
    steps: Callable[[float], Steps[Any]],
    answer: Callable[[Any], Any],
) -> Any:
    """Return the result of a view that may wait.

    Args:
        request: The client's request, which its route has admitted.
        wait: Seconds that it may wait.
        steps: Returns steps that wait for at most that many seconds and produce the result. If
            nothing is available, they raise LeaseHeld or produce something empty.
        answer: Converts the result to what the view returns: a Status with its model.
    """
    if not wait:
        return answer(drive(steps(0)))
    waiting = Waiting(request, wait, steps, answer)
    if isinstance(request, ASGIRequest):
        return waiting
    with waiting.steps() as each:
        return answer(drive(each))


_lock = threading.Lock()
#: The number of requests of this process that wait, by the name of their client.
_waits: Counter[str] = Counter()


@contextmanager
def _place(request: HttpRequest) -> Iterator[bool]:
    """Take a place of this process for a request that waits, and yield True if there was one."""
    settings, client = leasing_settings, caller(request)
    if isinstance(request, ASGIRequest):
        places, of_client = settings.API_WAITING_REQUESTS, settings.API_WAITING_PER_CLIENT
    else:
        # A server reports that it has several threads, but not how many.
        places = settings.API_WAITING_THREADS if request.META.get("wsgi.multithread") else 0
        of_client = places
    with _lock:
        has_place = _waits.total() < places and _waits[client] < of_client
        _waits[client] += has_place
    try:
        yield has_place
    finally:
        with _lock:
            _waits[client] -= has_place
            if not _waits[client]:
                del _waits[client]
