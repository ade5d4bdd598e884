"""Eight processes that want one lease of a Redis, which is killed, frozen, emptied and cut off."""

from __future__ import annotations

from typing import Any

from leasing.stores.redis import RedisStore
from tests.chaos import redis_servers
from tests.chaos.redis_servers import DATABASES, FAULTS, FIRST, check, must_happen
from tests.chaos.workload import Actor, Part, Run

__all__ = ["DATABASES", "FAULTS", "FIRST", "check", "must_happen"]


def actors(run: Run) -> list[Actor]:
    return redis_servers.actors(run, keep, contend)


def contend(part: Part) -> None:
    redis_servers.contend(part, lambda urls: RedisStore(url=urls[0], timeout=0.5), ["hot"])


def keep(part: Part) -> None:
    redis_servers.keep(part, 1, redis_servers.BROKEN, admit)


def admit(urls: list[str], is_nothing_held: bool) -> Any:
    """Admit the new server; later it waits, for nobody else knows what it forgot."""
    store = RedisStore(url=urls[0])
    try:
        return store.admit(True) if is_nothing_held else []
    finally:
        store.disconnect()
