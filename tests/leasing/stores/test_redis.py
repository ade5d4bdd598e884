"""A store in Redis: servers that fail, forget, or are none that may keep leases."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress
from typing import Any

import pytest
import redis
from django.test import override_settings

from leasing import Leader, leased, once
from leasing.checks.stores import check_stores
from leasing.exceptions import LeaseLost, StoreError, UnsupportedByStore
from leasing.holding.keeper import keeper
from leasing.stores import InvalidStore, stores
from leasing.stores.redis import RedisStore
from tests.brokers import Broker, free_ports
from tests.leasing.stores import redis_cases
from tests.leasing.stores.redis_cases import terms
from tests.leasing.stores.redis_servers import admitted, served
from tests.processes import wait_for
from tests.proxy import TcpProxy

pytestmark = pytest.mark.slow

BACKEND = "leasing.stores.redis.RedisStore"


class TestTokens(redis_cases.TokenCases):
    pass


class TestAnswers(redis_cases.AnswerCases):
    pass


class TestMemory(redis_cases.MemoryCases):
    pass


class TestSnapshots(redis_cases.SnapshotCases):
    pass


class TestLists(redis_cases.ListCases):
    pass


class TestClocks(redis_cases.ClockCases):
    pass


class TestCopies(redis_cases.CopyCases):
    pass


def refusal(url: str) -> str:
    """Return the sentence in which a lease of that server is refused."""
    store = RedisStore(url=url, timeout=2)
    try:
        with pytest.raises(StoreError) as refused:
            store.acquire("crane", terms())
    finally:
        store.disconnect()
    sentence = str(refused.value)
    assert sentence.startswith("Redis at 127.0.0.1:")
    return sentence.partition("/0 ")[2]


# Servers that may not keep leases


def test_a_cluster_is_refused() -> None:
    with served(cluster_enabled="yes") as (broker,):
        assert refusal(broker.url) == (
            "is a cluster, where a lease may be lost in a failover. Leases are kept by one server, "
            "or by a majority of several: MajorityStore."
        )


def test_a_replica_is_refused(server: Broker) -> None:
    with served(replicaof=f"127.0.0.1 {server.port}") as (broker,):
        assert refusal(broker.url) == "is a replica. Its URL must be that of the primary."


def test_a_server_that_becomes_a_replica_is_refused(server: Broker) -> None:
    with served() as (broker,), redis.Redis(port=broker.port) as connection:
        store = admitted(RedisStore(url=broker.url))
        store.acquire("crane", terms())
        connection.replicaof("127.0.0.1", server.port)
        with pytest.raises(StoreError, match="is a read-only replica. Its URL must be that of"):
            store.acquire("ship", terms())
        store.disconnect()


def test_a_server_that_evicts_keys_is_refused(server: Broker, admin: Any) -> None:
    admin.config_set("maxmemory-policy", "allkeys-lru", "maxmemory", "100mb")
    assert refusal(server.url) == (
        "evicts keys when it is full (maxmemory-policy allkeys-lru), and leases would be among "
        "them. Set noeviction, or give leases a server of their own."
    )
    admin.config_set("maxmemory", "0")
    admitted(RedisStore(url=server.url)).disconnect()


def test_a_full_server_is_refused(server: Broker, admin: Any) -> None:
    store = admitted(RedisStore(url=server.url))
    admin.config_set("maxmemory", "1")
    assert refusal(server.url) == "is full: it has reached its maxmemory."
    store.disconnect()


def test_passwords_are_refused_and_told_to_nobody(server: Broker, admin: Any) -> None:
    url = server.url.replace("redis://", "redis://:hunter2@")
    admin.config_set("requirepass", "hunter1")
    assert refusal(url) == "refuses the user or the password of its URL."
    assert refusal(server.url) == "refuses the user or the password of its URL."
    assert "hunter2" not in repr(RedisStore(url=url))


def test_a_server_that_is_away_is_an_error() -> None:
    (port,) = free_ports(1)
    assert refusal(f"redis://127.0.0.1:{port}/0").startswith("does not answer: Error 111")


def test_a_server_that_loads_its_data_is_an_error() -> None:
    slow: dict[str, Any] = {"loading_process_events_interval_bytes": 1024, "rdbcompression": "no"}
    with (
        served(**slow) as (broker,),
        redis.Redis(port=broker.port, socket_timeout=None) as connection,
    ):
        for number in range(60):
            connection.set(f"key:{number}", "x" * 5000)
        connection.config_set("key-load-delay", 20_000)
        loading = threading.Thread(target=connection.execute_command, args=["DEBUG", "RELOAD"])
        loading.start()
        with redis.Redis(port=broker.port) as other:
            wait_for(lambda: other.info("persistence")["loading"])
        assert refusal(broker.url).endswith("is loading the dataset in memory")
        loading.join()


class OtherServer(TcpProxy):
    """Makes a server one of another kind or version, by texts of the same length."""

    def __init__(self, port: int, is_: bytes, seems: bytes) -> None:
        self.is_, self.seems = is_, seems
        super().__init__(port)

    def _connect(self) -> socket.socket:
        server = super()._connect()
        ours, theirs = socket.socketpair()
        for source, target in ((theirs, server), (server, theirs)):
            threading.Thread(target=self._alter, args=(source, target), daemon=True).start()
        return ours

    def _alter(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data.replace(self.is_, self.seems))
        self._shut(source, target)


def test_a_server_that_is_too_old_is_refused(server: Broker) -> None:
    network = OtherServer(server.port, b"redis_version:7.0.15", b"redis_version:6.2.14")
    with redis.Redis(port=server.port) as connection:
        if connection.info("server")["redis_version"] != "7.0.15":
            pytest.skip("the version is replaced by one of the same length")
    assert refusal(f"redis://{network.address}/0") == "is version 6.2.14, and must be 7 or later."
    network.close()


def test_a_valkey_calls_its_mode_otherwise(server: Broker) -> None:
    standalone = b"redis_mode:standalone\r\n", b"server_mode:standalone\n"
    with closing(OtherServer(server.port, *standalone)) as network:
        store = RedisStore(url=f"redis://{network.address}/0")
        assert store.current("crane") is None
        store.disconnect()


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "missing 1 required keyword-only argument: 'url'"),
        ({"URL": "http://here"}, "makes no store: Redis URL must specify one of the following"),
        ({"URL": "redis://here", "TIMEOUT": 0}, "the TIMEOUT must be a number of seconds"),
        ({"URL": "redis://here", "PREFIX": "a\n"}, "the PREFIX must be printable text"),
        ({"URL": "redis://here", "PREFIXX": "a"}, "unexpected keyword argument 'prefixx'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with override_settings(LEASING={"STORES": {"redis": {"BACKEND": BACKEND, **options}}}):
        (found,) = check_stores()
        assert found.id == "leasing.E031"
        assert message in found.msg
        with pytest.raises(InvalidStore):
            stores["redis"]


def test_leaders_and_decorated_functions_use_it_and_once_refuses(server: Broker) -> None:
    entry = {"BACKEND": BACKEND, "URL": server.url}
    with override_settings(LEASING={"STORES": {"redis": entry}}):
        admitted(stores["redis"])  # type: ignore[arg-type]
        with Leader("scheduler", holder="me", store="redis") as term:
            assert term.valid
            assert stores["redis"].current("scheduler").holder == "me"  # type: ignore[union-attr]

        @leased("report:{pk}", store="redis", holder="me")
        def write(pk: int) -> str:
            return stores["redis"].current(f"report:{pk}").holder  # type: ignore[union-attr]

        assert write(1) == "me"
        with pytest.raises(UnsupportedByStore, match="keeps its results in rows"):
            once("charge:1", window=60, store="redis")


# The keeper


def test_a_server_that_hangs_costs_a_hold_its_trust_and_nobody_else(server: Broker) -> None:
    store = admitted(RedisStore(url=server.url, timeout=1))
    with served() as (other,):
        frozen = admitted(RedisStore(url=other.url, timeout=30))
        with store.hold("crane", ttl=2) as kept:
            late = pytest.raises(LeaseLost, match="not renewed in time")
            with late, frozen.hold("barge", ttl=1.5) as hold:
                other.pause()
                assert hold.lost.wait(10)
            kept.ensure()
            other.resume()
            wait_for(lambda: not keeper.draining)
            with frozen.hold("ship", ttl=2) as again:
                until = again.trusted_until
                wait_for(lambda: again.trusted_until > until)
        frozen.disconnect()
    store.disconnect()
