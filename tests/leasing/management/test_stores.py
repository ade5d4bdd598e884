"""``leases stores`` and ``leases list --store``, over a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from leasing.metrics.leases import figures
from leasing.models import AuditEntry
from leasing.stores import stores
from tests.brokers import Broker, free_ports
from tests.leasing.stores.redis_servers import served

pytestmark = [pytest.mark.slow, pytest.mark.django_db]


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with served() as (broker,):
        yield broker


@pytest.fixture(autouse=True)
def named(server: Broker) -> Iterator[None]:
    (port,) = free_ports(1)
    backend = "leasing.stores.redis.RedisStore"
    entries = {
        "here": {"BACKEND": backend, "URL": server.url},
        "away": {"BACKEND": backend, "URL": f"redis://127.0.0.1:{port}/0"},
        "mine": {"BACKEND": "leasing.stores.memory.MemoryStore"},
    }
    with override_settings(LEASING={"STORES": entries}):
        yield


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    call_command("leases", *args, "--json")
    return json.loads(capsys.readouterr().out)


def test_a_new_server_is_admitted_once_the_operator_confirms(
    server: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"127.0.0.1:{server.port}/0"
    listed = printed(capsys, "stores", "list")
    rows = {row["store"]: row["state"] for row in listed}
    assert listed[0]["place"] == "rows of the database"
    assert listed[1]["place"] == f"Redis at {where}"
    assert rows["default"] == rows["mine"] == "grants"
    assert rows["here"].startswith("may have forgotten leases, and grants none until 20")
    assert "does not answer: Error 111" in rows["away"]
    with pytest.raises(CommandError, match="Stop every process .* See --nothing-is-held"):
        call_command("leases", "stores", "admit", "here")

    args = "stores", "admit", "here", "--nothing-is-held", "--by", "root"
    assert printed(capsys, *args) == {"admitted": [where]}
    for forgets_nothing in ("here", "mine", "default"):
        assert printed(capsys, "stores", "admit", forgets_nothing) == {"admitted": []}
    assert printed(capsys, "stores", "list")[1]["state"] == "grants"
    entry = AuditEntry.objects.get(verb="admit_servers", changed=1)
    assert (entry.by, entry.target) == ("root", {"filter": {"store": "here"}})

    with stores["here"].hold("crane", holder="me") as hold:
        (row,) = printed(capsys, "list", "--store", "here")
    assert (row["resource"], row["holder"]) == ("crane", "me")
    assert row["fencing_token"] == hold.fencing_token
    call_command("leases", "list", "--store", "here")
    assert capsys.readouterr().out == "No leases are held.\n"


def test_leases_of_a_store_are_counted_for_metrics(server: Broker) -> None:
    entry = {"BACKEND": "leasing.stores.redis.RedisStore", "URL": server.url, "PREFIX": "metrics:"}
    with override_settings(LEASING={"STORES": {"here": entry}}):
        stores["here"].admit(is_nothing_held=True)  # type: ignore[attr-defined]
        figures.cache_clear()
        (figure, none) = [each for each in figures() if each.name.startswith("store ")][::-1]
        with stores["here"].hold("crane"), stores["here"].hold("ship"):
            (family,) = figure.get()
        assert (none.name, none.get()[0].samples) == ("store default", [])
    figures.cache_clear()
    assert (figure.name, figure.up) == ("store here", 1)
    assert family.name == "leasing_store_leases"
    assert [(each.labels, each.value) for each in family.samples] == [({"store": "here"}, 2)]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["stores", "admit", "her"], "has no store 'her'. Did you mean 'here'?"),
        (["stores", "admit", "away"], "does not answer"),
        (["list", "--store", "default"], "The store default does not list its leases."),
        (["list", "--store", "away"], "does not answer"),
        (["list", "--store", "her"], "Did you mean 'here'?"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(args: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        call_command("leases", *args)
