"""A Redis server for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.brokers import Broker
from tests.leasing.stores.redis_servers import served


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with served() as (broker,):
        yield broker


@pytest.fixture
def admin(server: Broker) -> Iterator[Any]:
    """A connection that is open before the server is changed, and undoes it."""
    with redis.Redis(port=server.port, decode_responses=True) as connection:
        connection.ping()
        yield connection
        connection.config_set("requirepass", "")
        connection.config_set("maxmemory-policy", "noeviction", "maxmemory", "0")
        connection.config_set("appendonly", "yes", "appendfsync", "always")
