"""Requests that wait: for a lease that is held, or for a task to become ready.

The wait is bounded by API_MAX_WAIT, and ended early by what wakes its steps.

Under WSGI it takes a thread, and if all threads of a process waited, nobody would be answered, not
even the request that ends the wait. So only API_WAITING_THREADS requests of a process wait at the
same time, none where it has one thread, and the others are answered at once, with Retry-After.

Under ASGI it takes no thread: the view returns ``Waiting``, whose steps are taken by the event
loop, with threads for single statements. They are stopped when the client hangs up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from pydantic import Field

from leasing.api.bodies import Between
from leasing.conf import leasing_settings
from leasing.exceptions import LeaseHeld
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
    """An answer that is not available yet.

    Args:
        steps: Bring the result.
        answer: Makes of it what the view returns.
    """

    def __init__(self, steps: Steps[Any], answer: Callable[[Any], Any]) -> None:
        super().__init__()
        self.steps = steps
        self.answer = answer


def answer_with(
    request: HttpRequest,
    wait: float,
    steps: Callable[[float], Steps[Any]],
    answer: Callable[[Any], Any],
) -> Any:
    """Return the result of a view that may wait.

    Args:
        request: The client's request.
        wait: Seconds that it may wait.
        steps: Steps that wait for so many seconds at most and bring the result. They raise
            LeaseHeld, or bring something empty, if there is nothing.
        answer: Makes of the result what the view returns: a Status with its model.
    """
    if not wait:
        return answer(drive(steps(0)))
    if isinstance(request, ASGIRequest):
        return Waiting(steps(wait), answer)
    try:
        result = drive(steps(0))
        if result:
            return answer(result)
    except LeaseHeld as held:
        refusal: LeaseHeld | None = held
    else:
        refusal = None
    with _place(request) as has_place:
        if has_place:
            return answer(drive(steps(wait)))
    if refusal is not None:
        raise refusal
    request.try_again_in = NO_PLACE  # type: ignore[attr-defined]
    return answer(result)


_lock = threading.Lock()
_taken = 0


@contextmanager
def _place(request: HttpRequest) -> Iterator[bool]:
    """Take one of the places for waiting threads, and yield if there was one."""
    global _taken
    # A server with several threads says so, but not with how many.
    places = leasing_settings.API_WAITING_THREADS if request.META.get("wsgi.multithread") else 0
    with _lock:
        has_place = _taken < places
        _taken += has_place
    try:
        yield has_place
    finally:
        with _lock:
            _taken -= has_place
