"""``check --deploy --database default`` asks the servers of stores: a sentence for each fault."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.test import override_settings

from leasing.checks.stores import check_servers
from leasing.stores import stores
from tests.brokers import Broker, free_ports
from tests.leasing.stores.redis_servers import served

pytestmark = pytest.mark.slow


def found(url: str, **options: Any) -> list[CheckMessage]:
    """Return what is reported of the Redis at ``url``, once nobody holds a lease of it."""
    entry = {"BACKEND": "leasing.stores.redis.RedisStore", "URL": url, **options}
    with override_settings(LEASING={"STORES": {"redis": entry}}):
        return list(check_servers())


def admit(url: str) -> None:
    entry = {"BACKEND": "leasing.stores.redis.RedisStore", "URL": url}
    with override_settings(LEASING={"STORES": {"redis": entry}}):
        stores["redis"].admit(is_nothing_held=True)  # type: ignore[attr-defined]


def test_a_new_server_has_to_be_admitted(server: Broker) -> None:
    (message,) = found(server.url, PREFIX="new:")
    assert message.id == "leasing.E104"
    assert "is new, or was emptied or restarted, and may have forgotten leases" in message.msg


def test_a_durable_server_is_right_and_nothing_stays_held(server: Broker, admin: Any) -> None:
    admit(server.url)
    assert found(server.url) == found(server.url) == []
    entry = {"BACKEND": "leasing.stores.redis.RedisStore", "URL": server.url}
    with override_settings(LEASING={"STORES": {"redis": entry}}):
        assert stores.held("redis") == {}
        with stores["redis"].hold("leasing.check"):  # somebody else examines it
            assert list(check_servers()) == []


def test_what_loses_leases_is_a_warning_each(server: Broker, admin: Any) -> None:
    admit(server.url)
    admin.config_set("appendfsync", "everysec")
    (message,) = found(server.url)
    assert message.id == "leasing.W113"
    assert "appendfsync is not always (everysec): a power cut forgets" in message.msg
    admin.config_set("appendonly", "no")
    (message,) = found(server.url)
    assert "has no append-only file: a restart forgets all leases" in message.msg
    admin.execute_command("ACL", "SETUSER", "bob", "on", ">x", "~*", "+@all", "-config")
    admin.config_set("appendonly", "yes")
    (message,) = found(server.url.replace("://", "://bob:x@"))
    assert "appendfsync is not always (unknown, for its user may not ask)" in message.msg
    admin.execute_command("ACL", "DELUSER", "bob")


def test_replicas_are_a_warning(server: Broker, admin: Any) -> None:
    admit(server.url)
    with served(replicaof=f"127.0.0.1 {server.port}"):
        while not admin.info()["connected_slaves"]:
            pass
        (message,) = found(server.url)
    assert "has replicas: if one is promoted" in message.msg


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("maxmemory", "1", "is full: it has reached its maxmemory."),
        ("requirepass", "x", "refuses the user or the password of its URL."),
    ],
)
def test_a_server_that_refuses_is_an_error(
    server: Broker, admin: Any, setting: str, value: str, sentence: str
) -> None:
    admit(server.url)
    admin.config_set(setting, value)
    (message,) = found(server.url)
    assert (message.id, sentence in message.msg) == ("leasing.E104", True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cluster_enabled": "yes"}, "is a cluster, where a lease may be lost in a failover."),
        ({"replicaof": "127.0.0.1 1"}, "is a replica. Its URL must be that of the primary."),
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, "evicts keys when it is full"),
    ],
)
def test_a_server_of_another_kind_is_an_error(options: dict[str, Any], sentence: str) -> None:
    with served(**options) as (broker,):
        (message,) = found(broker.url)
    assert (message.id, sentence in message.msg) == ("leasing.E104", True)


def test_each_member_of_a_majority_is_asked_and_may_forget(server: Broker) -> None:
    (port,) = free_ports(1)
    with served(2, appendonly="no") as brokers:
        members = [*(each.url for each in brokers), f"redis://127.0.0.1:{port}"]
        entry = {"BACKEND": "leasing.stores.majority.MajorityStore", "MEMBERS": members}
        with override_settings(LEASING={"STORES": {"majority": entry}}):
            stores["majority"].admit(is_nothing_held=True)  # type: ignore[attr-defined]
            (message,) = check_servers()
    assert message.id == "leasing.E104"
    assert f"127.0.0.1:{port}/0 does not answer" in message.msg


def test_other_stores_and_entries_that_are_none_are_not_asked() -> None:
    entries = {
        "mine": {"BACKEND": "leasing.stores.memory.MemoryStore"},
        "none": {"BACKEND": "nowhere.Store"},
    }
    with override_settings(LEASING={"STORES": entries}):
        assert list(check_servers()) == []
    entry = {"BACKEND": "leasing.stores.redis.RedisStore", "URL": "redis://127.0.0.1:1"}
    with override_settings(LEASING={"STORES": {"away": entry}, "ENABLED": False}):
        assert list(check_servers()) == []
