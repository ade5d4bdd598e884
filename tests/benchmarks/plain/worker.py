"""A worker of the plain queue, as a puppet: ``drain`` until it is empty, or ``listen``."""

from __future__ import annotations

import os
from typing import Any

from tests.benchmarks.bench import play
from tests.benchmarks.plain import queue

HOLDER = f"plain:{os.getpid()}"


def drain(connection: queue.Connection) -> int:
    """Work until there is nothing left. Returns how many tasks were done here."""
    total = 0
    while done := queue.work(connection, HOLDER):
        total += done
    return total


def listen(connection: queue.Connection) -> None:
    """Work whenever something was enqueued, for ever."""
    connection.execute("LISTEN plain_queue")
    drain(connection)
    while True:
        list(connection.notifies(stop_after=1))
        drain(connection)


def main() -> None:
    connection = queue.connect(os.environ["DATABASE_URL"])
    orders: dict[str, Any] = {
        "drain": lambda: drain(connection),
        "listen": lambda: listen(connection),
    }
    play(orders)


if __name__ == "__main__":
    main()
