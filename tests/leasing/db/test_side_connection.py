"""Calls on a connection of their own, as coroutines leave them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from leasing.db.side_connection import CLOSING, SideConnection, moved
from leasing.runtime.aio import Steps, Undoable, adrive
from tests.leasing.support import PATIENCE


@pytest.fixture
def answered() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_that_is_cancelled_while_the_database_hangs_holds_up_no_event_loop(
    answered: threading.Event,
) -> None:
    begun, undone = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        answered.wait(PATIENCE)

    def steps() -> Steps[None]:
        yield Undoable(hang, lambda result: undone.set())

    async def cancel() -> float:
        driven = asyncio.create_task(adrive(moved(SideConnection("default"), steps())))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        driven.cancel()
        began = time.monotonic()
        with suppress(asyncio.CancelledError):
            await driven
        return time.monotonic() - began

    assert asyncio.run(cancel()) < CLOSING / 2
    answered.set()
    assert undone.wait(PATIENCE)
