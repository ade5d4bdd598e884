"""``@leased``: a function that runs only while it holds a lease."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, JsonResponse
from django.utils import timezone

from leasing.exceptions import LeaseHeld
from leasing.holding import Hold, Term
from leasing.store import HoldOptions, NamedStore
from leasing.stores import DEFAULT_STORE, store_of
from leasing.validation.names import check_name, fields_of, unknown_fields

Function = TypeVar("Function", bound=Callable[..., Any])
#: Called with the arguments of a refused call, and ``held``.
OnHeld = Callable[..., Any]

#: Bounds of the header Retry-After, in seconds.
SHORTEST_RETRY, LONGEST_RETRY = 1, 60


def leased(
    resource: str,
    *,
    on_held: OnHeld | None = None,
    store: str | NamedStore = DEFAULT_STORE,
    **options: Unpack[HoldOptions],
) -> Callable[[Function], Function]:
    """Run the decorated function, coroutine or view under a lease on ``resource``.

    ``resource`` is a format string over the call's arguments: ``@leased("report:{pk}")``. A
    parameter called ``hold`` gets the term, as a keyword argument. The other arguments are those of
    ``Lease.objects.hold``, ``on_held``, and ``store``: the store of the lease, or its alias in
    LEASING["STORES"].

    If someone else holds the lease, ``on_held`` is called with the arguments of the call, and with
    the LeaseHeld as ``held``; its result is that of the call. Without it, the call raises
    LeaseHeld, and a view (its first argument is a request) answers 409 with ``{"error": "busy"}``.
    The answer does not name the holder, since anybody may see it.

    Raises TypeError at decoration for a ``resource`` that names no argument, and for a generator
    function: its body would run after the call. At the call it raises TypeError for an unknown
    argument, and InvalidResource for a name that no argument makes usable. The content of a
    StreamingHttpResponse is sent after the view has returned, so without the lease.
    """
    if not isinstance(resource, str):
        raise TypeError(
            f'@leased needs the name of a resource: @leased("report:{{pk}}"), not {resource!r}.'
        )

    def decorate(function: Function) -> Function:
        refuse_generators(function)
        signature = inspect.signature(function)
        check_template("resource", resource, function, signature)

        def hold_for(args: Any, kwargs: Any) -> Hold:
            bound = signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            return store_of(store).hold(resource.format(**arguments_of(bound)), **options)

        def call(args: Any, kwargs: Any, term: Term) -> Any:
            given = {**kwargs, "hold": term} if "hold" in signature.parameters else kwargs
            return function(*args, **given)

        # Of the hold alone, and not of what the body acquires.
        def refuse(args: Any, kwargs: Any, held: LeaseHeld) -> Any:
            if on_held is None:
                return _refuse(signature.bind_partial(*args, **kwargs), held)
            return on_held(*args, **kwargs, held=held)

        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with AsyncExitStack() as block:
                    hold = hold_for(args, kwargs)
                    try:
                        term = await block.enter_async_context(hold)
                    except LeaseHeld as held:
                        answer = refuse(args, kwargs, held)
                        return await answer if inspect.isawaitable(answer) else answer
                    return await call(args, kwargs, term)

            return _with_signature(run_async, signature)  # type: ignore[no-any-return]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as block:
                hold = hold_for(args, kwargs)
                try:
                    term = block.enter_context(hold)
                except LeaseHeld as held:
                    return refuse(args, kwargs, held)
                return call(args, kwargs, term)

        return _with_signature(run, signature)  # type: ignore[no-any-return]

    return decorate


def check_template(
    what: str, template: str, function: Callable[..., Any], signature: inspect.Signature
) -> None:
    """Raise TypeError if ``template`` names what no call of ``function`` has as an argument;
    InvalidResource if it names none, and is unusable as it is.

    Args:
        what: The name of the template in errors.
        template: A format string.
        function: The function that is called.
        signature: Its signature.
    """
    if unknown := unknown_fields(template, signature):
        name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        known = ", ".join(signature.parameters) or "none"
        raise TypeError(
            f"The {what} {template!r} uses {', '.join(f'{{{each}}}' for each in unknown)}, but "
            f"{name} has no such argument. Its arguments: {known}."
        )
    if not [*fields_of(template)]:
        check_name(template.format(), what)


def _with_signature(run: Callable[..., Any], signature: inspect.Signature) -> Any:
    """``run`` with the arguments that a caller gives, for those who look: the hold is not one."""
    given = [each for name, each in signature.parameters.items() if name != "hold"]
    run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return run


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
    if any(map(_is_request, [*call.args[:2], call.kwargs.get("request")])):
        return JsonResponse(
            {"error": "busy"}, status=409, headers={"Retry-After": str(_seconds_until_free(held))}
        )
    raise held


def _seconds_until_free(held: LeaseHeld) -> int:
    """Seconds until the deadline, by this server's clock. It may be free before, or be renewed."""
    if held.expires_at is None:
        return SHORTEST_RETRY
    left = (held.expires_at - timezone.now()).total_seconds()
    return max(SHORTEST_RETRY, min(math.ceil(left), LONGEST_RETRY))


def _is_request(value: object) -> bool:
    # The request of Django REST framework wraps Django's.
    return isinstance(value, HttpRequest) or isinstance(
        getattr(value, "_request", None), HttpRequest
    )
