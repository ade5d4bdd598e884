"""What a store in Redis does beyond the contract of stores, as cases that broken scripts fail."""

from __future__ import annotations

import time
import uuid
from typing import Any

import redis
from django.test import SimpleTestCase, override_settings

from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.store import NamedStore
from leasing.stores.redis import RedisStore
from leasing.testing.contract import StoreContract
from leasing.validation.terms import Terms
from tests.brokers import Broker
from tests.leasing.stores.redis_servers import admitted, served
from tests.processes import wait_for
from tests.proxy import TcpProxy

#: An hour, in microseconds.
HOUR = 3_600_000_000
#: Seconds after which a server that may have forgotten leases grants again.
MAX_TTL = 1.5


def terms(ttl: float = 60, holder: str = "me") -> Terms:
    return Terms.check(holder=holder, ttl=ttl)


class RedisCases(SimpleTestCase):
    #: The class of the stores.
    kind = RedisStore
    #: Options of the server, which a case may stop.
    options: dict[str, Any] = {}
    server: Broker

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        (cls.server,) = cls.enterClassContext(served(**cls.options))

    def setUp(self) -> None:
        self.redis: Any = redis.Redis(port=self.server.port, decode_responses=True)
        self.addCleanup(self.redis.close)
        self.redis.flushall()
        self.store = admitted(self.made(self.server.url))

    def made(self, url: str, **options: Any) -> RedisStore:
        store = self.kind(url=url, **options)
        self.addCleanup(store.disconnect)
        return store

    def change(self, **fields: object) -> None:
        """Write to the hash of the lease "crane"."""
        self.redis.hset("leasing:lease:crane", mapping=fields)

    def now(self) -> int:
        """Return the server's clock."""
        seconds, microseconds = self.redis.time()
        return int(seconds) * 1_000_000 + int(microseconds)


class ContractCases(StoreContract, SimpleTestCase):
    kind = RedisStore
    server: Broker

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        (cls.server,) = cls.enterClassContext(served())

    def make_store(self) -> NamedStore:
        store = admitted(self.kind(url=self.server.url))
        self.addCleanup(store.disconnect)
        return store


class TokenCases(RedisCases):
    def test_a_token_is_not_below_the_clock_and_above_the_last(self) -> None:
        before = self.now()
        first = self.store.acquire("crane", terms())
        self.assertLessEqual(before, first.fencing_token)
        self.assertLessEqual(first.fencing_token, self.now())
        self.store.release(first)
        ahead = self.now() + HOUR  # the clock was set back since
        self.change(token=ahead)
        self.assertEqual(self.store.acquire("crane", terms()).fencing_token, ahead + 1)

    def test_a_revocation_raises_the_token_however_far_it_is(self) -> None:
        grant = self.store.acquire("crane", terms())
        answer = self.store.revoke_here("crane")
        self.assertGreater(answer.token, grant.fencing_token)
        self.assertGreaterEqual(answer.token, answer.now)
        self.assertEqual(self.store.read(["crane"])["crane"].token, answer.token)
        self.store.acquire("crane", terms())
        ahead = self.now() + HOUR
        self.change(token=ahead)
        self.assertEqual(self.store.revoke_here("crane").token, ahead + 1)

    def test_a_token_that_is_not_above_the_last_is_refused(self) -> None:
        ahead = self.now() + HOUR
        grant = self.store.grant("crane", terms(), uuid.uuid4(), ahead)
        self.assertEqual(grant.fencing_token, ahead)
        self.store.give_back(grant)
        with self.assertRaisesRegex(LeaseHeld, "being acquired by someone else"):
            self.store.grant("crane", terms(), uuid.uuid4(), ahead)
        self.assertIsNone(self.store.current("crane"))

    def test_what_was_granted_is_remembered_longer_than_the_longest_ttl(self) -> None:
        def kept() -> float:
            left: int = self.redis.pttl("leasing:lease:crane")
            self.redis.persist("leasing:lease:crane")
            return left / 1000

        with override_settings(LEASING={"MAX_TTL": 100}):
            grant = self.store.acquire("crane", terms())
            self.assertTrue(195 < kept() <= 201)
            self.store.renew({grant.key: grant.grant_id}, 5)
            self.assertTrue(195 < kept() <= 201)
            self.store.revoke("crane")
            self.assertTrue(195 < kept() <= 201)

    def test_a_renewal_never_brings_the_deadline_nearer(self) -> None:
        grant = self.store.acquire("crane", terms())
        later = self.now() + HOUR  # the clock was set back since
        self.change(ends=later)
        self.store.renew({grant.key: grant.grant_id}, 5)
        self.assertEqual(self.store.read(["crane"])["crane"].ends, later)


class AnswerCases(RedisCases):
    def setUp(self) -> None:
        super().setUp()
        self.network = TcpProxy(self.server.port)
        self.addCleanup(self.network.close)
        self.far = self.made(f"redis://{self.network.address}/0", timeout=0.5)
        self.far.release(self.far.acquire("barge", terms()))  # the server has the scripts

    def test_a_grant_whose_answer_was_lost_is_found(self) -> None:
        self.network.swallow_replies()
        grant = self.far.acquire("crane", terms())
        self.assertEqual(self.network.lost, 1)
        self.assertEqual(self.redis.hget("leasing:lease:crane", "grant"), str(grant.grant_id))
        self.far.release(grant)

    def test_a_release_whose_answer_was_lost_has_happened(self) -> None:
        grant = self.far.acquire("crane", terms())
        self.network.swallow_replies()
        self.far.release(grant)
        self.assertIsNone(self.store.current("crane"))

    def test_a_grant_that_has_ended_is_not_made_again(self) -> None:
        grant_id = uuid.uuid4()
        self.store.give_back(self.store.grant("crane", terms(), grant_id))
        with self.assertRaisesRegex(StoreError, "came too late: it was released before"):
            self.store.grant("crane", terms(), grant_id)
        self.assertIsNone(self.store.current("crane"))

    def test_a_request_that_nobody_answers_is_an_error_and_not_a_refusal(self) -> None:
        self.network.swallow()
        with self.assertRaisesRegex(StoreError, r"^Redis at 127.0.0.1:\d+/0 does not answer: "):
            self.far.acquire("crane", terms())


class MemoryCases(RedisCases):
    """Of an emptied server, with a longest ttl of seconds."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(override_settings(LEASING={"MAX_TTL": MAX_TTL, "MIN_TTL": 0.1}))

    def grants(self) -> bool:
        try:
            self.store.acquire(f"free:{uuid.uuid4()}", terms(1))
        except StoreError:
            return False
        return True

    def test_an_emptied_server_grants_nothing_until_what_it_forgot_has_ended(self) -> None:
        with (
            self.assertRaises(LeaseLost) as loss,
            self.store.hold("crane", ttl=MAX_TTL) as hold,
        ):
            self.redis.flushall()
            began = time.monotonic()
            with self.assertRaisesRegex(StoreError, "may have forgotten leases. It grants none"):
                self.store.acquire("crane", terms(1, "other"))
            self.assertTrue(hold.valid)
            with self.assertRaises(LeaseLost):
                hold.renew()
        self.assertEqual(loss.exception.reason, "Redis does not know it: it was emptied")
        wait_for(self.grants)
        self.assertGreater(time.monotonic() - began, MAX_TTL - 0.05)

    def test_it_grants_at_once_when_an_operator_admits_it(self) -> None:
        self.redis.flushall()
        self.assertFalse(self.grants())
        self.assertIsNotNone(self.store.remembers_from())
        with self.assertRaisesRegex(StoreError, "Stop every process that holds one"):
            self.store.admit(is_nothing_held=False)
        self.assertFalse(self.grants())
        self.assertEqual(self.store.admit(is_nothing_held=True), [self.store.address])
        self.assertIsNone(self.store.remembers_from())
        self.assertTrue(self.grants())
        self.assertEqual(self.store.admit(is_nothing_held=False), [])

    def test_a_restart_with_its_file_of_changes_forgets_nothing(self) -> None:
        grant = self.store.acquire("crane", terms(1))
        self.server.kill()
        self.server.start()
        self.assertTrue(self.grants())
        self.assertIn(grant.key, self.store.renew({grant.key: grant.grant_id}, 5).renewed)

    def test_a_member_of_a_majority_is_not_believed_after_a_restart(self) -> None:
        self.store.remembers_restarts = False
        self.assertTrue(self.grants())
        grant = self.store.acquire("crane", terms(1))
        self.server.kill()
        self.server.start()
        self.assertFalse(self.grants())
        answer = self.store.renew({grant.key: grant.grant_id}, 5)
        self.assertEqual((answer.renewed, answer.lost), ({}, {}))

    def test_an_emptied_and_restarted_server_counts_as_emptied(self) -> None:
        self.redis.flushall()
        self.server.kill()
        self.server.start()
        self.assertFalse(self.grants())


class SnapshotCases(MemoryCases):
    """Of a server that writes snapshots only."""

    options = {"appendonly": "no"}
    # What it has not saved is gone.
    test_a_restart_with_its_file_of_changes_forgets_nothing = None  # type: ignore[assignment]
    test_a_member_of_a_majority_is_not_believed_after_a_restart = None  # type: ignore[assignment]

    def test_after_a_restart_it_confirms_and_grants_nothing(self) -> None:
        grant = self.store.acquire("crane", terms(1))
        self.redis.save()
        self.server.kill()
        self.server.start()
        answer = self.store.renew({grant.key: grant.grant_id}, 5)
        self.assertEqual((answer.renewed, answer.lost), ({}, {}))
        self.assertFalse(self.grants())
        time.sleep(MAX_TTL)
        self.assertTrue(self.grants())


class ListCases(RedisCases):
    def test_leases_are_listed_as_they_are_named(self) -> None:
        self.store = admitted(self.made(self.server.url, prefix="a[b]*:"))
        names = ["x", "a*", "\u4e2d", *map(str, range(600))]
        held = self.store.acquire("x", terms(holder="me"))
        for name in names[1:]:
            self.store.release(self.store.acquire(name, terms()))
        self.made(self.server.url, prefix="ab:").learn({})
        listed = dict(self.store.leases())
        self.assertEqual(sorted(listed), sorted(names))
        self.assertEqual(
            (listed["x"].holder, listed["x"].token, listed["x"].ends - listed["x"].now > 0),
            ("me", held.fencing_token, True),
        )
        self.assertEqual(listed["a*"].incumbent, None)


class ClockCases(RedisCases):
    """Of a lease that has ended by the server's clock alone, and of one that was ended."""

    def last(self) -> str:
        return self.store.read(["crane"])["crane"].grant

    def test_a_grant_that_has_expired_is_told(self) -> None:
        grant = self.store.acquire("crane", terms())
        self.change(ends=self.now() - HOUR)  # as for a clock that jumped ahead
        self.assertEqual(self.last(), str(grant.grant_id))
        self.assertIsNone(self.store.current("crane"))

    def test_a_lease_that_was_ended_keeps_no_grant(self) -> None:
        self.store.release(self.store.acquire("crane", terms()))
        self.assertEqual(self.last(), "")
        self.store.acquire("crane", terms())
        self.store.revoke("crane")
        self.assertEqual(self.last(), "")


class CopyCases(RedisCases):
    def setUp(self) -> None:
        super().setUp()
        self.other = admitted(self.made(self.server.url, prefix="other:"))

    def copy(self) -> None:
        self.store.learn(dict(self.other.leases()))

    def test_a_copied_lease_is_held_here_too_and_its_token_is_known(self) -> None:
        grant = self.other.acquire("crane", terms())
        self.other.release(self.other.acquire("ship", terms()))
        last = self.other.read(["ship"])["ship"].token
        self.copy()
        with self.assertRaises(LeaseHeld):
            self.store.acquire("crane", terms())
        self.assertIn("crane", self.store.renew({"crane": grant.grant_id}, 5).renewed)
        self.assertEqual(self.store.read(["ship"])["ship"].token, last)
        self.assertIsNone(self.store.current("ship"))
        self.assertGreater(self.redis.pttl("leasing:lease:ship"), 0)

    def test_what_is_newer_or_held_here_stays(self) -> None:
        old = self.other.acquire("crane", terms())
        own = self.store.acquire("crane", terms(holder="own"))
        self.copy()
        self.assertEqual(self.store.current("crane").fencing_token, own.fencing_token)  # type: ignore[union-attr]
        self.other.release(old)
        short = self.other.acquire("crane", terms(1))
        self.copy()
        self.assertIn("crane", self.store.renew({"crane": own.grant_id}, 5).renewed)
        self.assertEqual(self.store.read(["crane"])["crane"].token, short.fencing_token)

    def test_what_is_held_there_for_longer_is_held_here_for_as_long(self) -> None:
        self.store.acquire("crane", terms(1))
        grant = self.other.acquire("crane", terms())
        self.copy()
        self.assertIn("crane", self.store.renew({"crane": grant.grant_id}, 5).renewed)
