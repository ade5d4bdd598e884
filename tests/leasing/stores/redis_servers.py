"""Redis servers for tests of the stores in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import SkipTest

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
