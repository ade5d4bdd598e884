"""``with ctx.completing():`` one commit for the handler's own writes and its task's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from asgiref.sync import sync_to_async


class Completing:
    """A block at whose end the task is completed, in the block's own transaction.

    ``output``, what the task gives back, may be set until the block ends. ``async with`` opens
    the transaction on the thread that the coroutine's own queries run on.
    """

    def __init__(
        self, block: Callable[[Completing], AbstractContextManager[None]], output: Any
    ) -> None:
        self.output = output
        self._block = block(self)
        self._entered = False

    def __enter__(self) -> Completing:
        self._block.__enter__()
        self._entered = True
        return self

    def __exit__(self, *how: Any) -> bool | None:
        return self._block.__exit__(*how)

    async def __aenter__(self) -> Completing:
        try:
            await _to_its_end(self.__enter__)
        except asyncio.CancelledError as error:
            if self._entered:
                await _to_its_end(self.__exit__, type(error), error, None)
            raise
        return self

    async def __aexit__(self, *how: Any) -> bool | None:
        ended: bool | None = await _to_its_end(self.__exit__, *how)
        return ended


async def _to_its_end(call: Callable[..., Any], *args: Any) -> Any:
    """Await ``call`` on the thread for queries. A thread cannot be cancelled: when the caller
    is, its transaction is to be left in a known state before anything else happens."""
    work = asyncio.ensure_future(sync_to_async(call)(*args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.gather(work, return_exceptions=True)
        raise
