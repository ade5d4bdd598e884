"""Eight processes that want leases of three Redis servers, of which one after the other is killed,
frozen, emptied, cut off, or has a clock that is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos import redis_servers
from tests.chaos.history import Operation
from tests.chaos.redis_servers import clock_off, emptied, frozen, killed, replies_dropped
from tests.chaos.workload import NOBODY, Actor, Part, Run, Violation, calls
from tests.leasing.stores.redis_servers import SkewedStore

DATABASES = ("postgresql",)
FAULTS = ("kill-holding", "stop", "kill")
FIRST = ("kill-holding", "stop")
BROKEN: Mapping[str, redis_servers.Fault] = {
    "killed": killed,
    "frozen": frozen,
    "emptied": emptied,
    "replies dropped": replies_dropped,
    "clock off": clock_off,
}
#: The first is wanted by all.
NAMES = [*["hot"] * 5, *(f"cold:{number}" for number in range(5))]


def actors(run: Run) -> list[Actor]:
    env = {"CHAOS_SECONDS": str(run.seconds)}
    return [
        calls(keep, kind=NOBODY, lasts=True, env=env),
        *(calls(contend, number) for number in range(8)),
    ]


def contend(part: Part) -> None:
    redis_servers.contend(part, lambda urls: SkewedStore(members=urls, timeout=0.5), NAMES)


def keep(part: Part) -> None:
    redis_servers.keep(part, 3, BROKEN, admit)


def admit(urls: list[str], is_nothing_held: bool) -> Any:
    store = SkewedStore(members=urls)
    try:
        return store.admit(is_nothing_held)
    finally:
        store.disconnect()


def check(operations: Sequence[Operation], facts: None) -> list[Violation]:
    return redis_servers.check(operations)


def must_happen(operations: Sequence[Operation], facts: None) -> dict[str, int]:
    return redis_servers.must_happen(operations, BROKEN)
