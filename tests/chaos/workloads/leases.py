"""Named leases, one that all want and many that few do: kept by the keeper, and renewed by hand."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from leasing.models import Lease
from tests.chaos.changes import Change, changes
from tests.chaos.checks import check_leases, count_leases, takeover_figures, works_again
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.holding import held_for, rest
from tests.chaos.workload import Actor, Part, Run, Violation, calls

FIRST = ("kill-holding", "stop")
NETWORKS = ("proxy", "direct", "pooler")
#: A lease so long that answers may be late by more than the margin of trust, and still count.
SLOW, SLOW_TTL = "kept:slow", 3 * TTL
#: Seconds of trust that holders by hand leave unused.
MARGIN = 0.2


def contend(part: Part) -> None:
    """Hold leases on two threads: the hot one among them."""
    threads = [threading.Thread(target=_by_hand, args=[part])]
    for thread in threads:
        thread.start()
    while not part.stop.is_set():
        resource = _resource(part, "kept")
        hold = Lease.objects.hold(resource, ttl=TTL, wait=2 * TTL, stopping=part.stop)
        held_for(part, resource, hold, part.random.uniform(0, 1.5 * TTL))
    for thread in threads:
        thread.join()


def keep(part: Part) -> None:
    """Hold a lease all the time, over a network that fails."""
    while not part.stop.is_set():
        hold = Lease.objects.hold(SLOW, ttl=SLOW_TTL, wait=TTL, stopping=part.stop)
        held_for(part, SLOW, hold, 12 * TTL)


def succeed(part: Part) -> None:
    """Wait for the same lease, over a network that does not, and hold it for a moment."""
    while not part.stop.is_set():
        # It is refused before ``works_again`` would miss an answer: the other may keep it longer.
        hold = Lease.objects.hold(SLOW, ttl=SLOW_TTL, wait=2 * TTL, stopping=part.stop)
        held_for(part, SLOW, hold, 0.2)
        part.stop.wait(TTL)


def _by_hand(part: Part) -> None:
    """Acquire, renew and release by verbs, and trust from the moment of each request."""
    recorder = part.recorder
    while not part.stop.is_set():
        resource = _resource(part, "hand")
        with recorder.call("acquire", resource, passes=(Exception,)) as call:
            lease = Lease.objects.acquire(resource, ttl=TTL, wait=0.5)
            call.ok(token=lease.fencing_token, trusted_until=_trusted(call.began))
        if not call.is_ok:
            rest(part)
            continue
        token = lease.fencing_token
        for _ in range(part.random.randrange(8)):
            part.stop.wait(TTL / 4)
            with recorder.call("renew", resource, passes=(Exception,), token=token) as call:
                Lease.objects.renew(lease)
                call.ok(trusted_until=_trusted(call.began))
            if not call.is_ok:
                break
        with recorder.call("release", resource, passes=(Exception,), token=token):
            Lease.objects.release(lease)


def _resource(part: Part, kind: str) -> str:
    if part.random.random() < 0.5:
        return f"{kind}:hot"
    return f"{kind}:{part.random.randrange(20)}"


def _trusted(asked: int) -> int:
    return asked + int((TTL - MARGIN) * 1e9)


def actors(run: Run) -> list[Actor]:
    return [
        *(
            calls(contend, number, network=network, has_clock=number == 0)
            for number, network in enumerate(NETWORKS)
        ),
        calls(keep),
        calls(succeed, network="direct"),
    ]


def facts(run: Run) -> list[Change]:
    return changes()


def check(operations: Sequence[Operation], facts: Sequence[Change]) -> list[Violation]:
    return [*check_leases(operations, facts), *works_again(operations)]


def must_happen(operations: Sequence[Operation], facts: Sequence[Change]) -> dict[str, int]:
    return count_leases(operations, facts)


def figures(operations: Sequence[Operation], facts: Sequence[Change]) -> str:
    return takeover_figures(operations, facts)
