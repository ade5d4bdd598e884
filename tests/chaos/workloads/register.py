"""Numbers that holders read, raise by one and write back: fenced, proven by ``still_mine``, and a
control that nothing guards, which must lose updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leasing.models import Lease
from tests.chaos.changes import Change, changes
from tests.chaos.checks import (
    check_leases,
    count_leases,
    takeover_figures,
    works_again,
    writes_follow,
)
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.holding import granted, rest
from tests.chaos.models import Register
from tests.chaos.workload import Actor, Part, Run, Violation, calls

FIRST = ("stop-inside", "stop-inside", "stop-inside")
NETWORKS = ("proxy", "direct", "pooler", "direct")
UNGUARDED = "unguarded"
NAMES = ("fenced:0", "fenced:1", "proven:0", UNGUARDED)


class Facts(NamedTuple):
    """What is in the database at the end."""

    changes: list[Change]
    #: The number and the id of the last write of each register.
    registers: dict[str, tuple[int, str]]


def write(part: Part) -> None:
    """Hold a lease and write a few times under it."""
    while not part.stop.is_set():
        resource = part.random.choice(NAMES)
        hold = Lease.objects.hold(resource, ttl=TTL, wait=2 * TTL, stopping=part.stop)
        with part.recorder.call("acquire", resource, passes=(Exception,)) as call:
            term = hold.__enter__()
            granted(call, term)
        if not call.is_ok:
            rest(part)
            continue
        token = term.fencing_token
        for number in range(part.random.randrange(1, 6)):
            name = f"{token}/{number}"
            with part.recorder.call("write", resource, passes=(Exception,), id=name) as call:
                if resource.startswith("fenced"):
                    found = _write_fenced(part, resource, token, name)
                elif resource.startswith("proven"):
                    with term.still_mine():
                        found = _write(part, resource, name)
                else:
                    found = _write(part, resource, name)
                call.ok(read=found)
            if not call.is_ok:
                break
        with part.recorder.call("release", resource, passes=(Exception,), token=token):
            hold.__exit__(None, None, None)
        rest(part) if not call.is_ok else None


def _write_fenced(part: Part, resource: str, token: int, name: str) -> tuple[int, str]:
    """Write under the bare token: the row alone refuses what is stale, no clock of this process."""
    row = Register.objects.get(name=resource)
    row.advance_fence(token)
    found = row.count, row.last
    _think(part)
    row.count, row.last = row.count + 1, name
    row.save_fenced(token, update_fields=["count", "last"])
    return found


def _write(part: Part, resource: str, name: str) -> tuple[int, str]:
    row = Register.objects.get(name=resource)
    found = row.count, row.last
    _think(part)
    Register.objects.filter(name=resource).update(count=row.count + 1, last=name)
    return found


def _think(part: Part) -> None:
    """Take the time in which a process can be suspended."""
    part.stop.wait(part.random.uniform(0, 0.1))


def prepare(run: Run) -> None:
    for name in NAMES:
        Register.objects.create(name=name)


def actors(run: Run) -> list[Actor]:
    return [
        calls(write, number, network=network, has_clock=number == 0)
        for number, network in enumerate(NETWORKS)
    ]


def facts(run: Run) -> Facts:
    rows = Register.objects.values_list("name", "count", "last")
    return Facts(changes(), {name: (count, last) for name, count, last in rows})


def check(operations: Sequence[Operation], facts: Facts) -> list[Violation]:
    guarded = [each for each in operations if each.resource != UNGUARDED]
    return [
        *writes_follow(guarded, facts.registers),
        *check_leases(operations, facts.changes),
        *works_again(operations),
    ]


def must_happen(operations: Sequence[Operation], facts: Facts) -> dict[str, int]:
    writes = [each for each in operations if each.name == "write"]
    control = [each for each in writes if each.resource == UNGUARDED]
    refused = [each for each in writes if each.result.get("error") == "StaleToken"]
    return {
        **count_leases(operations, facts.changes),
        "writes": sum(each.is_ok for each in writes),
        "stale writes refused": len(refused),
        "faults in the unguarded control": len(writes_follow(control, facts.registers)),
    }


def figures(operations: Sequence[Operation], facts: Facts) -> str:
    return takeover_figures(operations, facts.changes)
