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
from tests.processes import wait_for


@pytest.fixture
def answered() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_that_is_cancelled_while_the_database_hangs_holds_up_no_event_loop(
    answered: threading.Event,
) -> None:
    undone: list[None] = []

    async def cancel() -> float:
        begun = threading.Event()

        def hang() -> None:
            begun.set()
            answered.wait(PATIENCE)

        def steps() -> Steps[None]:
            yield Undoable(hang, undone.append)

        driven = asyncio.create_task(adrive(moved(SideConnection("default"), steps())))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        driven.cancel()
        began = time.monotonic()
        with suppress(asyncio.CancelledError):
            await driven
        return time.monotonic() - began

    seconds = [asyncio.run(cancel()) for _ in range(3)]
    assert min(seconds) < CLOSING / 2  # of a busy machine one may be slow
    answered.set()
    wait_for(lambda: undone == [None] * 3)
