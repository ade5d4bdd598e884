"""The points at which leases can be traced. Nobody is there until ``leasing.tracing`` is.

What stands here is called as what it follows happens, and raises nothing of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from leasing.runtime.aio import Steps

Result = TypeVar("Result")


class Held(Protocol):
    """The part of a hold that a tracer reads."""

    @property
    def resource(self) -> str: ...

    @property
    def holder(self) -> str: ...

    @property
    def fencing_token(self) -> int: ...

    @property
    def ttl(self) -> float: ...


class HoldTrace(Protocol):
    """Follows one term of a hold."""

    def renewed(self) -> object: ...

    def lost(self, reason: str) -> object: ...

    def close(self) -> object:
        """The block has ended, on the thread or coroutine where it began."""


class LeaseTracer(Protocol):
    """Follows leases."""

    def acquiring(self, resource: str, steps: Steps[Any]) -> Steps[Any]:
        """``steps``, which acquire ``resource``, followed."""

    def releasing(self, resource: str, release: Callable[[], Result]) -> Result:
        """Call ``release``, which gives ``resource`` back."""

    def holding(self, hold: Held, inside: bool) -> HoldTrace | None:
        """``hold`` was entered; ``inside``: what happens in its context is a part of it."""


class Points:
    """The tracer of this process's leases; None while there is none."""

    tracer: LeaseTracer | None = None


points = Points()
