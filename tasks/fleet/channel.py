"""The channel between the parent and a child: a line of JSON for each report, a word for each
order."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

#: Orders of the parent: stop; and wait for nothing more.
STOP, HURRY = b"s", b"h"
#: Seconds between two reports: of a child, and of one that does not serve yet.
REPORT_EVERY, READY_EVERY = 1.0, 0.05


class ReportReader:
    """The parent's end."""

    def __init__(self, channel: socket.socket, hear: Callable[[Mapping[str, Any]], object]) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._hear = hear
        self._received = b""

    def read(self) -> bool:
        """Take in what has come. Return False once the child has closed its end."""
        try:
            data = self.channel.recv(65_536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        return bool(data)

    def order(self, word: bytes) -> None:
        """Send an order. A child that is gone, or reads nothing, does not hear it."""
        with suppress(OSError):
            self.channel.send(word)


def send_report(channel: socket.socket, report: Mapping[str, Any]) -> None:
    """Send a report to the parent. Raises OSError when it is gone."""
    channel.sendall(json.dumps(report).encode() + b"\n")
