"""A store in a majority of Redis servers, of which some are away, forget, or go wrong."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from django.test import override_settings

from leasing import Leader
from leasing.checks.stores import check_stores
from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.runtime.clock import clock
from leasing.stores import stores
from leasing.stores.majority import MajorityStore, united
from leasing.stores.redis import Answer
from tests.brokers import Broker
from tests.leasing.stores.redis_cases import HOUR, terms
from tests.leasing.stores.redis_servers import SkewedStore, served
from tests.processes import wait_for

pytestmark = pytest.mark.slow

BACKEND = "leasing.stores.majority.MajorityStore"
#: Seconds after which a member that may have forgotten leases has a vote again.
MAX_TTL = 2.0


@pytest.fixture
def servers() -> Iterator[list[Broker]]:
    with served(3) as brokers, override_settings(LEASING={"MAX_TTL": MAX_TTL, "MIN_TTL": 0.1}):
        yield brokers
        for each in brokers:
            with suppress(Exception):
                each.resume()


def made(servers: list[Broker], **options: Any) -> MajorityStore:
    return MajorityStore(members=[each.url for each in servers], **{"timeout": 0.5} | options)


@pytest.fixture
def store(servers: list[Broker]) -> Iterator[MajorityStore]:
    store = made(servers)
    store.admit(is_nothing_held=True)
    yield store
    store.disconnect()


@pytest.fixture
def other(servers: list[Broker]) -> Iterator[MajorityStore]:
    """The store of another process."""
    store = made(servers)
    yield store
    store.disconnect()


def empty(server: Broker) -> None:
    with redis.Redis(port=server.port) as connection:
        connection.flushall()


def grants(store: MajorityStore, name: str) -> bool:
    try:
        store.acquire(name, terms(1))
    except (StoreError, LeaseHeld):
        return False
    return True


# Away


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_one_may_be_killed_and_any_one_may_hang(
    servers: list[Broker], store: MajorityStore, number: int
) -> None:
    for break_, mend in (("kill", "start"), ("pause", "resume")):
        with store.hold(f"crane:{break_}", ttl=MAX_TTL) as hold:
            getattr(servers[number], break_)()
            for _ in range(3):
                assert grants(store, f"ship:{break_}:{_}")
            until = hold.trusted_until
            hold.renew()
            assert hold.trusted_until > until
        getattr(servers[number], mend)()
        store.admit(is_nothing_held=False)


def test_without_a_majority_nothing_is_granted_and_trust_ends(
    servers: list[Broker], store: MajorityStore
) -> None:
    with (
        pytest.raises(LeaseLost, match="not renewed in time"),
        store.hold("crane", ttl=1) as hold,
    ):
        servers[0].kill()
        servers[2].pause()
        with pytest.raises(StoreError, match="Fewer than 2 of 3 agree. .*does not answer"):
            store.acquire("ship", terms(1))
        for call in (store.current, store.revoke):
            with pytest.raises(StoreError, match="Fewer than 2 of 3 agree"):
                call("crane")
        assert hold.lost.wait(10)


def test_a_grant_of_a_minority_is_given_back(servers: list[Broker], store: MajorityStore) -> None:
    first, second, third = store.members
    rivals = {member: member.acquire("crane", terms(2, "rival")) for member in (second, third)}
    with pytest.raises(LeaseHeld):  # seen as it reads
        store.acquire("crane", terms(1))
    assert first.current("crane") is None
    second.release(rivals[second])
    with store.hold("crane", ttl=1, wait=5):
        pass

    empty(servers[1])
    empty(servers[2])
    with pytest.raises(StoreError, match="Fewer than 2 of 3 agree. .*may have forgotten"):
        store.acquire("crane", terms(1))
    assert first.current("crane") is None


def test_a_token_is_above_every_last_one(store: MajorityStore) -> None:
    first = store.acquire("crane", terms(1))
    store.release(first)
    ahead = first.fencing_token + 3_600_000_000
    member = store.members[2]
    member.give_back(member.grant("crane", terms(1), uuid.uuid4(), ahead))
    assert store.acquire("crane", terms(1)).fencing_token == ahead + 1


# Emptied


def test_an_emptied_member_has_no_vote_until_it_is_old_enough(
    servers: list[Broker], store: MajorityStore, other: MajorityStore
) -> None:
    servers[0].pause()
    grant = store.acquire("crane", terms(MAX_TTL))  # by the second and the third
    servers[0].resume()
    empty(servers[1])
    began = time.monotonic()
    assert not grants(other, "crane")
    assert store.renew({grant.key: grant.grant_id}, 5).renewed == {}
    wait_for(lambda: grants(other, "crane"))
    assert time.monotonic() - began > MAX_TTL - 0.05


def test_an_emptied_member_is_admitted_with_what_the_others_know(
    servers: list[Broker], store: MajorityStore, other: MajorityStore
) -> None:
    with store.hold("crane", ttl=MAX_TTL) as hold:
        token = store.members[0].read(["crane"])["crane"].token
        empty(servers[0])
        assert other.admit(is_nothing_held=False) == [store.members[0].address]
        assert other.admit(is_nothing_held=False) == []
        assert store.members[0].read(["crane"])["crane"].token == token
        servers[2].kill()
        for _ in range(3):
            hold.renew()
        with pytest.raises(LeaseHeld):
            other.acquire("crane", terms(1, "other"))
        assert dict(other.held())["crane"].fencing_token == hold.fencing_token


def test_where_too_few_know_what_is_held_an_operator_has_to(
    servers: list[Broker], store: MajorityStore
) -> None:
    empty(servers[0])
    empty(servers[1])
    assert not grants(store, "crane")
    with pytest.raises(StoreError, match="1 servers have forgotten nothing, and 2 must know"):
        store.admit(is_nothing_held=False)
    assert len(store.admit(is_nothing_held=True)) == 2
    assert grants(store, "crane")


def test_what_every_member_may_have_granted_is_copied() -> None:
    def known(token: int, grant: str, left: int) -> Answer:
        return Answer(1000, token, grant, "me" if grant else "", 5, 1000 + left if grant else 0)

    leases = [("a", known(3, "", 0)), ("a", known(1, "x", 50)), ("a", known(2, "y", 70))]
    assert united(leases) == {"a": known(3, "y", 70)}
    assert united(reversed(leases)) == {"a": known(3, "y", 70)}


# Clocks


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_off_moves_neither_trust_nor_tokens(
    servers: list[Broker], hours: int
) -> None:
    store = SkewedStore(members=[each.url for each in servers])
    store.admit(is_nothing_held=True)
    with redis.Redis(port=servers[0].port) as wrong:
        wrong.set("skew", hours * HOUR)
        off = [each.read(["x"])["x"].now for each in store.members]
        assert abs(off[0] - off[1] - hours * HOUR) < 1e6
        with store.hold("crane", ttl=2) as hold:
            assert abs(hold.fencing_token / 1e6 - time.time()) < 60
            assert hold.trusted_until - clock() < 2
            wrong.set("skew", -hours * HOUR)  # it lets go of the lease, or keeps it for hours
            hold.renew()
            with pytest.raises(LeaseHeld):
                store.acquire("crane", terms(1, "other"))
        store.release(store.acquire("crane", terms(1)))
    store.disconnect()


def test_a_clock_that_jumps_ahead_frees_nothing_though_only_one_other_member_knows_the_lease(
    servers: list[Broker],
) -> None:
    members = [each.url for each in servers]
    store, other = SkewedStore(members=members, timeout=0.5), SkewedStore(members=members)
    store.admit(is_nothing_held=True)
    with redis.Redis(port=servers[0].port) as wrong:
        servers[2].pause()
        grant = store.acquire("crane", terms(2))
        servers[2].resume()
        wait_for(lambda: store.members[2].read(["crane"])["crane"].grant == "")
        wrong.set("skew", HOUR)
        assert not store.members[0].read(["crane"])["crane"].holder
        with pytest.raises(LeaseHeld):
            other.acquire("crane", terms(1, "other"))
        with pytest.raises(LeaseLost):  # two do not know it any more
            store.release(grant)
        other.release(other.acquire("crane", terms(1, "other")))
    store.disconnect()
    other.disconnect()


# Settings


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("redis://a", "MEMBERS must be a list of servers of an odd number, three or more."),
        (["redis://a"], "MEMBERS must be a list of servers of an odd number, three or more."),
        (["redis://a", "redis://b"], "MEMBERS must be a list of servers of an odd number"),
        ([f"redis://{name}" for name in "abcd"], "MEMBERS must be a list of servers of an odd"),
        (["redis://a", "redis://b", "redis://a:6379/0"], "MEMBERS has a:6379/0 twice."),
        (["redis://a", "redis://b", "http://c"], "Redis URL must specify one of the following"),
    ],
)
def test_members_are_checked(members: Any, message: str) -> None:
    entry = {"BACKEND": BACKEND, "MEMBERS": members}
    with override_settings(LEASING={"STORES": {"majority": entry}}):
        (found,) = check_stores()
        assert message in found.msg


def test_a_server_that_is_named_in_two_ways_is_refused(
    servers: list[Broker], store: MajorityStore
) -> None:
    twice = servers[0].url.replace("127.0.0.1", "localhost")
    doubled = MajorityStore(members=[servers[0].url, twice, servers[1].url])
    with pytest.raises(StoreError, match="are one server. Name each once."):
        doubled.acquire("crane", terms(1))
    doubled.disconnect()


def test_a_leader_leads_under_it(servers: list[Broker], store: MajorityStore) -> None:
    entry = {"BACKEND": BACKEND, "MEMBERS": [each.url for each in servers]}
    with override_settings(LEASING={"STORES": {"majority": entry}}):
        with Leader("scheduler", holder="me", store="majority") as term:
            assert term.valid
            incumbent = stores["majority"].current("scheduler")
        assert incumbent is not None
        assert incumbent.holder == "me"


# The network


def test_a_member_that_is_late_does_not_keep_others_waiting(
    servers: list[Broker], store: MajorityStore
) -> None:
    servers[2].pause()
    assert grants(store, "crane")  # leaves it behind
    seconds = []
    for number in range(3):
        began = time.monotonic()
        assert grants(store, f"ship:{number}")
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.4  # of a busy machine one may be slow
    servers[2].resume()
