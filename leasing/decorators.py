"""``@leased``: a function that runs only while it holds a lease."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, JsonResponse

from leasing.exceptions import LeaseHeld
from leasing.hold import Hold

Function = TypeVar("Function", bound=Callable[..., Any])


def leased(resource: str, **options: Any) -> Callable[[Function], Function]:
    """Run the decorated function, coroutine or view under a lease on ``resource``.

    ``resource`` is a format string over the call's arguments: ``@leased("report:{pk}")``.
    ``options`` are those of ``Lease.objects.hold``. A parameter called ``hold`` is given the
    hold, by its name. A lost race raises LeaseHeld; for a view (the first argument is a request)
    it answers 409 with ``{"error": "..."}``.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        wants_hold = "hold" in signature.parameters

        def hold_for(args: Any, kwargs: Any) -> Hold:
            from leasing.models import Lease

            bound = signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            return Lease.objects.hold(resource.format(**bound.arguments), **options)

        def given(kwargs: dict[str, Any], hold: Hold) -> dict[str, Any]:
            return {**kwargs, "hold": hold} if wants_hold else kwargs

        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                hold = hold_for(args, kwargs)
                async with AsyncExitStack() as block:
                    # Only this refusal is ours to answer, not one that the body raises.
                    try:
                        await block.enter_async_context(hold)
                    except LeaseHeld as held:
                        return _refuse(args, held)
                    return await function(*args, **given(kwargs, hold))

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            hold = hold_for(args, kwargs)
            with ExitStack() as block:
                try:
                    block.enter_context(hold)
                except LeaseHeld as held:
                    return _refuse(args, held)
                return function(*args, **given(kwargs, hold))

        return run  # type: ignore[return-value]

    return decorate


def _refuse(args: Any, held: LeaseHeld) -> JsonResponse:
    # The first argument of a function, the second of a method.
    if any(isinstance(argument, HttpRequest) for argument in args[:2]):
        return JsonResponse({"error": str(held)}, status=409)
    raise held
