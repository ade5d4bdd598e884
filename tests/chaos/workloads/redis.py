"""Eight processes that want one lease of a Redis, which is killed, frozen, emptied and cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leasing.stores.redis import RedisStore
from tests.chaos import redis_servers
from tests.chaos.history import Operation
from tests.chaos.redis_servers import emptied, frozen, killed, replies_dropped
from tests.chaos.workload import NOBODY, Actor, Part, Run, Violation, calls

DATABASES = ("postgresql",)
FAULTS = ("kill-holding", "stop", "kill")
FIRST = ("kill-holding", "stop")
BROKEN: Mapping[str, redis_servers.Fault] = {
    "killed": killed,
    "frozen": frozen,
    "emptied": emptied,
    "replies dropped": replies_dropped,
}


def actors(run: Run) -> list[Actor]:
    env = {"CHAOS_SECONDS": str(run.seconds)}
    return [
        calls(keep, kind=NOBODY, lasts=True, env=env),
        *(calls(contend, number) for number in range(8)),
    ]


def contend(part: Part) -> None:
    redis_servers.contend(part, lambda urls: RedisStore(url=urls[0], timeout=0.5), ["hot"])


def keep(part: Part) -> None:
    redis_servers.keep(part, 1, BROKEN, admit)


def admit(urls: list[str], is_nothing_held: bool) -> Any:
    """Admit the new server; later it waits, for nobody else knows what it forgot."""
    store = RedisStore(url=urls[0])
    try:
        return store.admit(True) if is_nothing_held else []
    finally:
        store.disconnect()


def check(operations: Sequence[Operation], facts: None) -> list[Violation]:
    return redis_servers.check(operations)


def must_happen(operations: Sequence[Operation], facts: None) -> dict[str, int]:
    return redis_servers.must_happen(operations, BROKEN)
