"""Eight processes that want leases of three Redis servers, of which one after the other is killed,
frozen, emptied, cut off, or has a clock that is off."""

from __future__ import annotations

from typing import Any

from tests.chaos import redis_servers
from tests.chaos.redis_servers import DATABASES, FAULTS, FIRST, check, must_happen
from tests.chaos.workload import Actor, Part, Run
from tests.leasing.stores.redis_servers import SkewedStore

__all__ = ["DATABASES", "FAULTS", "FIRST", "check", "must_happen"]

#: The first is wanted by all.
NAMES = [*["hot"] * 5, *(f"cold:{number}" for number in range(5))]


def actors(run: Run) -> list[Actor]:
    return redis_servers.actors(run, keep, contend)


def contend(part: Part) -> None:
    redis_servers.contend(part, lambda urls: SkewedStore(members=urls, timeout=0.5), NAMES)


def keep(part: Part) -> None:
    broken = {**redis_servers.BROKEN, "clock off": redis_servers.clock_off}
    redis_servers.keep(part, 3, broken, admit)


def admit(urls: list[str], is_nothing_held: bool) -> Any:
    store = SkewedStore(members=urls)
    try:
        return store.admit(is_nothing_held)
    finally:
        store.disconnect()
