"""Requests in an event loop, as a server of ASGI has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from asgiref.sync import async_to_sync
from django.test import AsyncClient

from leasing.runtime import aio
from tests.leasing.support import PATIENCE


def in_loop(body: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Run ``body`` in an event loop. Fails the test if it hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await body(AsyncClient())

    async_to_sync(bounded)()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true."""
    while not condition():
        await asyncio.sleep(0.01)


@contextmanager
def calls_in_turn() -> Iterator[None]:
    """Make the calls of the block to the database one after the other."""
    with ThreadPoolExecutor(1) as lone, patch.object(aio, "_executor", lone):
        yield


async def settled() -> None:
    """Wait, with ``calls_in_turn``, for the calls whose caller was cancelled, and for what undoes
    them."""
    for _ in ("call", "undo"):
        await aio.in_thread(int)
