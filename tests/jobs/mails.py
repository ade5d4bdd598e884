"""Tasks of Django's API, found because a backend's OPTIONS name this module."""

from __future__ import annotations

import asyncio
from typing import Any

from tasks.django_api.compat import AnyContext, task
from tasks.exceptions import GiveUp

#: What tasks saw of their context, for tests in the same process.
seen: list[Any] = []


class BouncedError(Exception):
    """Nobody there."""

    class InnerError(Exception):
        """An error with a path of its own."""


@task
def send(address: str, *, subject: str = "") -> dict[str, str]:
    return {"address": address, "subject": subject}


@task
async def send_async(address: str) -> str:
    await asyncio.sleep(0)
    return address


@task
def returning(value: Any) -> Any:
    """Return the value, in a tuple."""
    return (value,)


@task
def returning_object() -> object:
    return object()


@task
def stamp(notes: list[str]) -> list[str]:
    notes.append("seen")
    return notes


@task
def bounce(address: str) -> None:
    raise BouncedError(f"{address} bounced")


@task
def give_up() -> None:
    raise GiveUp("the box is gone")


@task(takes_context=True)
def looking(context: AnyContext, note: str) -> str:
    seen.append(context)
    return note


@task(takes_context=True)
async def looking_async(context: AnyContext, note: str) -> str:
    seen.append(context)
    return note


@task(backend="second", queue_name="default")
def once_only() -> None:
    raise BouncedError("once")


@task(backend="elsewhere")
def for_elsewhere() -> str:
    return "done"
