"""``@leased``: a function that runs only while it holds a lease."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, JsonResponse

from leasing.conf import DEFAULT, Wait
from leasing.exceptions import LeaseHeld
from leasing.hold import Hold

Function = TypeVar("Function", bound=Callable[..., Any])


def leased(
    resource: str,
    *,
    holder: str | None = None,
    ttl: float | timedelta | None = None,
    wait: Wait = DEFAULT,
    separate: bool = False,
    stopping: threading.Event | None = None,
    on_lost: Callable[[Hold], object] | None = None,
    on_yield: Callable[[Hold], object] | None = None,
    priority: int = 0,
    max_hold: float | timedelta | None = None,
    grace: float | timedelta | None = None,
    preempt_after: float | timedelta | None = None,
    metadata: dict[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Run the decorated function, coroutine or view under a lease on ``resource``.

    ``resource`` is a format string over the call's arguments: ``@leased("report:{pk}")``.
    The other arguments are those of ``Lease.objects.hold``. A parameter called ``hold`` gets the
    hold, as a keyword argument. If someone else holds the lease, the call raises LeaseHeld; a view
    (its first argument is a request) answers 409 with ``{"error": "..."}``.

    Raises TypeError for a generator function: its body would run after the call. The content of a
    StreamingHttpResponse is sent after the view has returned, so without the lease.
    """

    def decorate(function: Function) -> Function:
        refuse_generators(function)
        signature = inspect.signature(function)
        wants_hold = "hold" in signature.parameters

        def call_of(args: Any, kwargs: Any) -> inspect.BoundArguments:
            bound = signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            return bound

        def hold_for(call: inspect.BoundArguments) -> Hold:
            from leasing.models import Lease

            return Lease.objects.hold(
                resource.format(**arguments_of(call)),
                holder=holder,
                ttl=ttl,
                wait=wait,
                separate=separate,
                stopping=stopping,
                on_lost=on_lost,
                on_yield=on_yield,
                priority=priority,
                max_hold=max_hold,
                grace=grace,
                preempt_after=preempt_after,
                metadata=metadata,
            )

        def given(kwargs: dict[str, Any], hold: Hold) -> dict[str, Any]:
            return {**kwargs, "hold": hold} if wants_hold else kwargs

        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                call = call_of(args, kwargs)
                hold = hold_for(call)
                async with AsyncExitStack() as block:
                    # Answer 409 for this refusal only, not for one that the body raises.
                    try:
                        await block.enter_async_context(hold)
                    except LeaseHeld as held:
                        return _refuse(call, held)
                    return await function(*args, **given(kwargs, hold))

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            call = call_of(args, kwargs)
            hold = hold_for(call)
            with ExitStack() as block:
                try:
                    block.enter_context(hold)
                except LeaseHeld as held:
                    return _refuse(call, held)
                return function(*args, **given(kwargs, hold))

        return run  # type: ignore[return-value]

    return decorate


def refuse_generators(function: Callable[..., Any]) -> None:
    """Raise TypeError for functions whose call returns before their body has begun."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{name} is a generator function: its body would run after the guarded call has "
            "ended. Use a with block inside it."
        )


def arguments_of(call: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of ``call`` by name, including those that ``**kwargs`` collects."""
    arguments = dict(call.arguments)
    for name, parameter in call.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments = arguments.get(name, {}) | arguments
    return arguments


def _refuse(call: inspect.BoundArguments, held: LeaseHeld) -> JsonResponse:
    # The first argument of a function, the second of a method.
    if any(_is_request(value) for value in [*call.args[:2], call.kwargs.get("request")]):
        return JsonResponse({"error": str(held)}, status=409)
    raise held


def _is_request(value: object) -> bool:
    # The request of Django REST framework wraps Django's.
    return isinstance(value, HttpRequest) or isinstance(
        getattr(value, "_request", None), HttpRequest
    )
