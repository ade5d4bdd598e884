"""The channel between parent and child: reports as lines of JSON, orders as single bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

#: Orders of the parent: stop when the running tasks have ended; stop without waiting for them.
STOP, STOP_NOW = b"s", b"h"
#: Seconds between two reports of a child: once it is ready, and before.
REPORT_EVERY, READY_EVERY = 1.0, 0.05


class ReportReader:
    """The parent's end of the channel."""

    def __init__(
        self, channel: socket.socket, on_report: Callable[[Mapping[str, Any]], object]
    ) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._on_report = on_report
        self._received = b""

    def read(self) -> bool:
        """Read the reports that have arrived. Return False once the child has closed its end."""
        try:
            data = self.channel.recv(65_536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._on_report(json.loads(line))
        return bool(data)

    def order(self, word: bytes) -> None:
        """Send an order. It is dropped if the child has exited, or does not read."""
        with suppress(OSError):
            self.channel.send(word)


def send_report(channel: socket.socket, report: Mapping[str, Any]) -> None:
    """Send a report to the parent. Raises OSError if the parent has exited."""
    channel.sendall(json.dumps(report).encode() + b"\n")
