"""The thread of a worker that tells its health: to probes, and by the age of a file. It waits for
nothing else, so it goes on while others hang."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from leasing.runtime.clock import system_clock as clock
from leasing.runtime.threads import LastingThread
from tasks.runtime.health import Health, HealthFile
from tasks.runtime.health_server import HealthServer

#: Seconds between touches of the file, and between looks at clients that hang.
LOOK_EVERY = 1.0


class HealthThread:
    """Tells the health of a worker until it has ended. Raises OSError if it cannot.

    Args:
        health: Returns the health.
        ended: Set when the worker has ended.
        address: The address and the port at which probes are answered; None: they are not.
        file: The file that is touched while the work moves; None: there is none.
    """

    def __init__(
        self,
        health: Callable[[], Health],
        ended: threading.Event,
        *,
        address: tuple[str, int] | None = None,
        file: Path | None = None,
    ) -> None:
        self._health = health
        self._ended = ended
        self._file = None if file is None else HealthFile(file)
        self._selector = selectors.DefaultSelector()
        self.server = None if address is None else HealthServer(*address, health, self)
        self._thread = LastingThread("health", self._work)

    def tend(self) -> None:
        """Start the thread if it does not run."""
        self._thread.tend()

    # The loop of the server

    def add_reader(self, file: socket.socket, callback: Callable[[], object]) -> None:
        self._selector.register(file, selectors.EVENT_READ, callback)

    def add_writer(self, file: socket.socket, callback: Callable[[], object]) -> None:
        self._selector.modify(file, selectors.EVENT_WRITE, callback)

    def remove(self, file: socket.socket) -> None:
        self._selector.unregister(file)

    def _work(self) -> None:
        touched_at = float("-inf")
        while not self._ended.is_set():
            for key, _ in self._selector.select(LOOK_EVERY):
                key.data()
            if self.server is not None:
                self.server.cut_off()
            if self._file is not None and clock() - touched_at >= LOOK_EVERY:
                touched_at = clock()
                self._file.note(self._health())
        if self.server is not None:
            self.server.close()
        self._selector.close()
