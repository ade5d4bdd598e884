"""A candidate for the leadership "race", which notes each moment at which it believed to lead.

``python -m tests.races.candidate NAME BEATS TTL`` appends lines to the file BEATS: its term's
token, its name, and the moment on the machine's clock. The moment is read before the belief is
looked at, so nothing is noted that was not believed then.
"""

from __future__ import annotations

import os
import sys
import threading

import django

django.setup()

from leasing import Leader  # noqa: E402
from leasing.runtime.clock import clock  # noqa: E402
from leasing.runtime.shutdown import on_stop_signal  # noqa: E402

#: Seconds between two beats.
PACE = 0.005


def main(name: str, beats: str, ttl: float) -> None:
    file = os.open(beats, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stopping = threading.Event()
    with on_stop_signal(stopping.set):
        print("ready")
        for term in Leader("race", ttl=ttl, holder=name).terms(stopping):
            while not stopping.is_set():
                now = clock()
                if not term.valid:
                    break
                os.write(file, f"{term.fencing_token} {name} {now:.6f}\n".encode())
                term.lost.wait(PACE)


main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
