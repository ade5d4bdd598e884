"""Holds two leases and writes under both, noting each write and each way it hears of a loss.

``python -m tests.races.writer TTL NOTES`` appends lines to the file NOTES: which of the holds
("sync" or "async"), what was noted, and the moment on the machine's clock. The moment of a write
is read before the hold is asked, so that what is noted was believed at that moment.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import django

django.setup()

from django.db import connections  # noqa: E402
from django.test import override_settings  # noqa: E402

from leasing.exceptions import LeaseLost  # noqa: E402
from leasing.holding.term import Term  # noqa: E402
from leasing.models import Lease  # noqa: E402
from leasing.runtime.clock import clock  # noqa: E402

#: Seconds between two writes.
PACE = 0.01
#: Renewals are missed, and losses told, long before the deadline: time for a loaded machine.
SETTINGS = {"RENEW_EVERY": 0.5, "MARGIN": 1.0}


def main(ttl: float, notes: str) -> None:
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(which: str, what: str, moment: float | None = None) -> None:
        moment = clock() if moment is None else moment
        os.write(file, f"{which} {what} {moment:.6f}\n".encode())

    def note_event(hold: Term) -> None:
        hold.lost.wait()
        note("sync", "event")

    def write_in_sync() -> None:
        hold = Lease.objects.hold("sync", ttl=ttl, on_lost=lambda hold: note("sync", "callback"))
        try:
            with hold as term:
                waiting = threading.Thread(target=note_event, args=[term])
                waiting.start()
                try:
                    while True:
                        now = clock()
                        term.ensure()
                        note("sync", "write", now)
                        term.lost.wait(PACE)
                except LeaseLost:
                    note("sync", "ensure")
                waiting.join()
        except LeaseLost:
            note("sync", "exception")
        connections.close_all()

    async def write_in_async() -> None:
        try:
            async with Lease.objects.hold("async", ttl=ttl) as hold:
                try:
                    while True:
                        now = clock()
                        if hold.valid:
                            note("async", "write", now)
                        await asyncio.sleep(PACE)
                except asyncio.CancelledError:
                    note("async", "cancellation")
                    raise
        except LeaseLost:
            note("async", "exception")

    thread = threading.Thread(target=write_in_sync)
    thread.start()
    asyncio.run(write_in_async())
    thread.join()


with override_settings(LEASING=SETTINGS):
    main(float(sys.argv[1]), sys.argv[2])
