"""A command for ``run_as_leader``: it beats until it is killed, and knows nothing of leases.

``python -S led.py BEATS [stubborn]`` appends lines to the file BEATS: the token of its term, its
process, and the moment on the machine's clock. A stubborn one has a child of its own, and both
are deaf to SIGTERM; any other says so in the file, and ends with exit code 7.
"""

import os
import signal
import sys
import time

TOKEN = os.environ["LEASE_FENCING_TOKEN"]
FILE = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(FILE, f"{TOKEN} {what} {now:.6f}\n".encode())


def leave(number: int, frame: object) -> None:
    note("asked")
    os._exit(7)


if sys.argv[2:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
else:
    signal.signal(signal.SIGTERM, leave)
while True:
    note(str(os.getpid()))
    time.sleep(0.005)
