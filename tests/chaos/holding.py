"""What processes of several workloads do: take a lease, note what they believe, give it back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import close_old_connections

from leasing.holding import Hold
from tests.chaos.history import Call, now
from tests.chaos.workload import Part

#: Seconds between two notes of a belief.
PACE = 0.05
#: Seconds after an error before the next try.
PAUSE = 0.2


def held_for(part: Part, resource: str, hold: Hold, seconds: float) -> None:
    """Take ``hold``, believe in it for ``seconds``, and release it."""
    with part.recorder.call("acquire", resource, passes=(Exception,)) as call:
        hold.__enter__()
        granted(call, hold)
    if not call.is_ok:
        rest(part)
        return
    token = hold.fencing_token
    believe(part, resource, hold, seconds)
    with part.recorder.call("release", resource, passes=(Exception,), token=token):
        hold.__exit__(None, None, None)


def granted(call: Call, hold: Hold) -> None:
    """End ``call`` with what is believed of ``hold``."""
    call.ok(token=hold.fencing_token, trusted_until=int(hold.trusted_until * 1e9))


def believe(
    part: Part, resource: str, hold: Hold, seconds: float, until: Callable[[], Any] = bool
) -> None:
    """Note what is believed of ``hold`` until the seconds are over, it is lost, the process is to
    stop or ``until`` is true."""
    token = hold.fencing_token
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not part.stop.is_set() and not until():
        # The moment is read first: what is noted was believed then.
        at, trusted_until = now(), int(hold.trusted_until * 1e9)
        if not hold.valid:
            part.recorder.note("lost", resource, token=token)
            return
        part.recorder.note("believe", resource, began=at, token=token, trusted_until=trusted_until)
        hold.lost.wait(PACE)


def rest(part: Part) -> None:
    """Wait a moment after an error, as what calls a process again would."""
    close_old_connections()
    part.stop.wait(PAUSE * part.random.uniform(0.5, 1.5))
