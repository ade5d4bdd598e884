"""Redis servers for tests of the stores in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import SkipTest

from leasing.stores.majority import MajorityStore, Member
from leasing.stores.redis import RedisStore
from tests.brokers import Broker, NoBroker, serve_redis

#: What a server must be that forgets nothing.
DURABLE: dict[str, Any] = {"appendfsync": "always", "enable-debug-command": "yes"}


@contextmanager
def served(number: int = 1, **options: Any) -> Iterator[list[Broker]]:
    """Run so many servers. Skips the test where there is no redis-server."""
    with ExitStack() as stack:
        try:
            yield [stack.enter_context(serve_redis(**DURABLE | options)) for _ in range(number)]
        except NoBroker as error:
            raise SkipTest(str(error)) from error


def admitted(store: RedisStore) -> RedisStore:
    """Return ``store``, whose server may grant though it is new."""
    store.learn({})
    return store


class SkewedMember(Member):
    """A member whose clock is off by the microseconds of the key "skew".

    libfaketime does not start a redis-server that has jemalloc, so the clock is bent where the
    scripts read it.
    """

    CLOCK = "local now = time[1] * 1000000 + time[2]"

    def run(self, script: str, resources: Iterable[str] = (), *args: Any) -> Any:
        assert self.CLOCK in script
        skewed = f"{self.CLOCK} + tonumber(redis.call('GET', 'skew') or 0)"
        return super().run(script.replace(self.CLOCK, skewed), resources, *args)


class SkewedStore(MajorityStore):
    member_class = SkewedMember
