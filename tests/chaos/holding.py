"""What processes of several workloads do: take a lease, note what they believe, give it back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import close_old_connections

from leasing.holding import Hold, Term
from tests.chaos.history import Call, now
from tests.chaos.workload import Part

#: Seconds between two notes of a belief.
PACE = 0.05
#: Seconds after an error before the next try.
PAUSE = 0.2


def held_for(part: Part, resource: str, hold: Hold, seconds: float) -> None:
    """Take ``hold``, believe in it for ``seconds``, and release it."""
    with part.recorder.call("acquire", resource, passes=(Exception,)) as call:
        term = hold.__enter__()
        granted(call, term)
    if not call.is_ok:
        rest(part)
        return
    believe(part, resource, term, seconds)
    token = term.fencing_token
    with part.recorder.call("release", resource, passes=(Exception,), token=token):
        hold.__exit__(None, None, None)


def granted(call: Call, term: Term) -> None:
    """End ``call`` with what is believed of ``term``."""
    call.ok(token=term.fencing_token, trusted_until=int(term.trusted_until * 1e9))


def believe(
    part: Part, resource: str, term: Term, seconds: float, until: Callable[[], Any] = bool
) -> None:
    """Note what is believed of ``term`` until the seconds are over, it is lost, the process is to
    stop or ``until`` is true."""
    token = term.fencing_token
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not part.stop.is_set() and not until():
        # The moment is read first: what is noted was believed then.
        at, trusted_until = now(), int(term.trusted_until * 1e9)
        if not term.valid:
            part.recorder.note("lost", resource, token=token)
            return
        part.recorder.note("believe", resource, began=at, token=token, trusted_until=trusted_until)
        term.lost.wait(PACE)


def rest(part: Part) -> None:
    """Wait a moment after an error, as what calls a process again would."""
    close_old_connections()
    part.stop.wait(PAUSE * part.random.uniform(0.5, 1.5))
