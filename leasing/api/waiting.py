"""Requests that wait: for a lease that is held, or for a task to become ready.

The wait is bounded by API_MAX_WAIT, and ended early by what wakes its steps. So is the number of
requests that wait in a process: one that finds no place is answered at once, as if its wait had
ended, with Retry-After.

Under WSGI a wait takes a thread, and if all threads of a process waited, nobody would be answered,
not even the request that ends the wait. So only API_WAITING_THREADS requests of a process wait at
the same time, none where it has one thread.

Under ASGI it takes neither a thread nor a connection: the view returns ``Waiting``, whose steps are
taken by the event loop, with threads for single statements. They are stopped when the client hangs
up. But a wait costs some statements in each second, so only API_WAITING_REQUESTS of a process wait
at the same time, and of one client API_WAITING_PER_CLIENT.
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

#: Seconds for which a client that found no place to wait is asked to stay away.
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
        """The steps that bring the result, for a driver in the block. They wait if the block finds
        a place."""
        with _place(self._request) as has_place:
            yield self._taken(has_place)

    def _taken(self, has_place: bool) -> Steps[Any]:
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
        request: The client's request, which its route has let in.
        wait: Seconds that it may wait.
        steps: Steps that wait for so many seconds at most and bring the result. They raise
            LeaseHeld, or bring something empty, if there is nothing.
        answer: Makes of the result what the view returns: a Status with its model.
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
        # A server with several threads says so, but not with how many.
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
