"""Leases in Redis: cycles a second of acquire and release on one thread, beside redis-py's own Lock
on the same server, in turns. The limit is that lock, which has no token, no renewal and no memory.

The server writes nothing to its disk: measured are the two programs and their scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import redis

from leasing.stores.majority import MajorityStore
from leasing.stores.redis import RedisStore
from leasing.validation.terms import Terms
from tests.benchmarks.bench import Bench, Figures, in_turns, rate
from tests.brokers import NoBroker, serve_redis


def run(bench: Bench) -> Figures:
    """Cycles a second; nothing where there is no redis-server."""
    with ExitStack() as stack:
        try:
            servers = [stack.enter_context(serve_redis(appendonly="no")) for _ in range(3)]
        except NoBroker:
            return {}
        client = stack.enter_context(redis.Redis(port=servers[0].port))
        store = RedisStore(url=servers[0].url)
        majority = MajorityStore(members=[each.url for each in servers])
        terms = Terms.check(holder="me", ttl=30)

        def lock() -> None:
            mine = client.lock("bench", timeout=30)
            assert mine.acquire(blocking=False)
            mine.release()

        def lease(store: RedisStore | MajorityStore) -> None:
            store.release(store.acquire("bench", terms))

        def hold() -> None:
            with store.hold("bench", ttl=30):
                pass

        store.admit(is_nothing_held=True)
        cycles: dict[str, Callable[[], object]] = {
            "limit": lock,
            "ours": partial(lease, store),
            "hold": hold,
        }
        seconds, rounds = bench.size.lease_seconds, bench.size.rounds
        alone = in_turns({n: partial(rate, each, seconds) for n, each in cycles.items()}, rounds)
        majority.admit(is_nothing_held=True)
        alone["majority"] = rate(partial(lease, majority), seconds)
        store.disconnect()
        majority.disconnect()
        return {"a lease in Redis: acquire, release (cycles/s)": alone}
