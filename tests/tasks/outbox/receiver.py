"""A publisher for processes of tests: writes each message to the file that RECEIVED names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Iterator

from tasks.models import OutboxMessage


def receive(message: OutboxMessage) -> None:
    """Append ``message``, in one write. Topics that begin with "bad" are refused; "slow" ones take
    some milliseconds."""
    line = {"uid": str(message.uid), "key": message.key, "id": message.pk, "by": os.getpid()}
    if message.topic == "bad":
        raise ValueError("poisoned")
    if message.topic == "slow":
        time.sleep(0.002)
    line |= {"payload": message.payload, "at": time.time()}
    with open(os.environ["RECEIVED"], "a") as file:
        file.write(json.dumps(line) + "\n")


async def later(message: OutboxMessage) -> None:
    """No publisher: nobody awaits it."""


def lazily(message: OutboxMessage) -> Iterator[None]:
    """No publisher: nobody takes what it yields."""
    receive(message)
    yield


async def lazily_later(message: OutboxMessage) -> AsyncIterator[None]:
    """No publisher either."""
    receive(message)
    yield


nothing = None
