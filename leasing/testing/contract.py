"""The contract of stores of leases, as tests: what ``leasing.store.NamedStore`` promises.

    class RemoteStoreTest(StoreContract, SimpleTestCase):
        def make_store(self):
            return RemoteStore(url="...")

Each test uses names of its own, so the store may be in use. Time really passes, a few seconds in
all, unless ``pass_time`` is replaced. ``StoreRaces`` has the tests with several threads. All stand
in one file, which the author of a store reads from top to bottom.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import TestCase

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from leasing import signals
from leasing.exceptions import (
    InvalidResource,
    InvalidTTL,
    LeaseHeld,
    LeaseLost,
    LeaseTimeout,
    UnsupportedByStore,
)
from leasing.holding import Term
from leasing.runtime.clock import clock
from leasing.store import NamedStore, Renewals
from leasing.validation.terms import Terms

#: A ttl that no test outlasts, and one that it waits for.
LONG, SHORT = 60.0, 1.0
#: Seconds that a request to the store may take.
TIMEOUT = 10.0
#: Seconds after which a thread that does not end fails the test.
PATIENCE = 30.0
#: Grants that are renewed at once.
MANY = 20
#: Names that a store keeps apart, and gives back as they were.
NAMES = ("a", "A", "a b", "a/b", "a%2Fb", "a?b#c&d", "\u00e4\u03c0\u4e2d", "\U0001f511", "x" * 200)

Signals = list[tuple[str, Any, dict[str, Any]]]

if TYPE_CHECKING:
    _Base = TestCase
else:
    _Base = object


class _StoreTests(_Base):
    #: The ttl in seconds of the hold that is renewed: longer where renewals may be late.
    renewed_ttl: float = SHORT
    store: NamedStore

    def setUp(self) -> None:
        super().setUp()
        self.store = self.make_store()
        self._prefix = f"contract:{uuid.uuid4().hex[:12]}:"

    def make_store(self) -> NamedStore:
        """Return the store that is tested."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Make ``seconds`` pass, for the store and its holders."""
        time.sleep(seconds)

    def forged(self, term: Term) -> tuple[Any, uuid.UUID]:
        """Return the key and the id of a grant of the same resource that was never made. A store
        whose proof stands in the key replaces it."""
        return term.key, uuid.uuid4()

    def is_serving(self) -> bool:
        """Return True while a service that is in this process too is at work, whose own signals
        are not those of its clients."""
        return False

    def name(self, suffix: str = "1") -> str:
        """Return a name that no other test uses."""
        return (self._prefix + suffix)[:200]

    def acquire(self, resource: str = "", holder: str = "me", ttl: float = LONG) -> Term:
        """Have ``resource`` granted; nobody renews it."""
        return self.store.acquire(resource or self.name(), Terms.check(holder=holder, ttl=ttl))

    def renew(self, *terms: Term) -> Renewals:
        """Renew ``terms`` by one request."""
        return self.store.renew({term.key: term.grant_id for term in terms}, TIMEOUT)

    def assert_held_by(self, holder: str, resource: str = "") -> None:
        """Fail unless ``holder`` is the current one, and everybody else is refused."""
        incumbent = self.store.current(resource or self.name())
        self.assertEqual(getattr(incumbent, "holder", None), holder)
        with self.assertRaises(LeaseHeld):
            self.acquire(resource, holder="contract: another")

    def assert_free(self, resource: str = "") -> None:
        """Fail if anybody holds it."""
        self.assertIsNone(self.store.current(resource or self.name()))


class StoreContract(_StoreTests):
    """Tests of one thread. Name it before a ``TestCase``."""

    # Granting

    def test_a_free_name_is_granted_until_the_block_ends(self) -> None:
        self.assert_free()
        with self.store.hold(self.name(), holder="me", ttl=LONG) as hold:
            self.assertTrue(hold.valid)
            self.assertEqual((hold.resource, hold.holder), (self.name(), "me"))
            self.assert_held_by("me")
        self.assertFalse(hold.valid)
        self.assert_free()

    def test_a_refusal_names_the_holder_and_its_deadline(self) -> None:
        term = self.acquire(holder="me")
        for other in ("other", "me"):
            with self.assertRaises(LeaseHeld) as refusal:
                self.acquire(holder=other)
            self.assertEqual(refusal.exception.resource, self.name())
            self.assertIn(refusal.exception.holder, ("me", ""))  # a service may not tell it
            if refusal.exception.expires_at is not None:
                self.assertEqual(refusal.exception.expires_at, term.expires_at)

    def test_tokens_rise_and_proofs_differ_however_a_grant_ends(self) -> None:
        terms = [self.acquire()]
        self.store.release(terms[-1])
        terms.append(self.acquire())
        self.store.revoke(self.name())
        terms.append(self.acquire(ttl=SHORT))
        self.pass_time(SHORT)
        terms.append(self.acquire())

        tokens = [term.fencing_token for term in terms]
        self.assertEqual(tokens, sorted(set(tokens)))
        self.assertGreater(tokens[0], 0)
        self.assertEqual(len({term.grant_id for term in terms}), 4)

    def test_trust_is_counted_from_before_the_request(self) -> None:
        before = clock()
        term = self.acquire(ttl=LONG)
        self.assertLessEqual(before, term.sent_at)
        self.assertLessEqual(term.sent_at, clock())
        self.assertEqual(term.ttl, LONG)
        self.assertLessEqual(term.remaining, LONG)
        self.assertGreater(term.remaining, LONG - TIMEOUT)

    def test_names_are_kept_as_they_are(self) -> None:
        terms = {name: self.acquire(self.name(name)) for name in NAMES}
        for name, term in terms.items():
            self.assertEqual(term.resource, self.name(name))
            self.assert_held_by("me", self.name(name))
        self.assertEqual(set(self.renew(*terms.values()).renewed), {g.key for g in terms.values()})
        for name, term in terms.items():
            self.store.release(term)
            self.assert_free(self.name(name))

    def test_impossible_names_and_times_are_refused_before_anything_happens(self) -> None:
        for name in ("", " a", "a\n", "x" * 201, None, 7):
            with self.assertRaises(InvalidResource):
                self.store.hold(name)  # type: ignore[arg-type]
        for ttl in (0, -1, float("nan"), True, "10"):
            with self.assertRaises(InvalidTTL):
                self.store.hold(self.name(), ttl=ttl)  # type: ignore[arg-type]
        self.assert_free()

    def test_an_unknown_option_is_refused_by_its_name(self) -> None:
        with self.assertRaisesRegex(TypeError, "timeout"):
            self.store.hold(self.name(), timeout=3)  # type: ignore[call-arg]

    # Renewing

    def test_a_renewal_moves_the_deadline_a_ttl_ahead(self) -> None:
        term = self.acquire(ttl=2 * SHORT)
        self.pass_time(1.5 * SHORT)
        renewal = self.renew(term).renewed[term.key]
        self.assertGreater(renewal.expires_at, term.expires_at)
        self.assertLessEqual(renewal.remaining, 2 * SHORT)
        self.pass_time(SHORT)
        self.assert_held_by("me")

    def test_many_are_renewed_at_once_and_each_is_answered_for_itself(self) -> None:
        terms = [self.acquire(self.name(str(n))) for n in range(MANY)]
        self.store.release(terms[3])
        self.store.revoke(terms[5].resource)
        self.acquire(terms[5].resource, holder="next")

        answer = self.renew(*terms)
        ended = {terms[3].key, terms[5].key}
        self.assertEqual(set(answer.lost), ended)
        self.assertEqual(set(answer.renewed), {term.key for term in terms} - ended)
        self.assertTrue(all(answer.lost.values()))
        self.assert_held_by("next", terms[5].resource)

    def test_a_renewal_proves_its_grant(self) -> None:
        term = self.acquire()
        key, grant_id = self.forged(term)
        self.assertEqual(set(self.store.renew({key: grant_id}, TIMEOUT).renewed), set())
        self.assertEqual(set(self.renew(term).renewed), {term.key})

    def test_what_has_expired_is_never_renewed(self) -> None:
        term = self.acquire(ttl=SHORT)
        self.pass_time(SHORT)
        self.assertEqual(set(self.renew(term).lost), {term.key})
        self.assert_free()
        self.acquire(holder="next")
        self.assertEqual(set(self.renew(term).lost), {term.key})
        self.assert_held_by("next")

    def test_the_keeper_renews_while_the_block_runs(self) -> None:
        ttl = self.renewed_ttl
        with self.store.hold(self.name(), holder="me", ttl=ttl) as hold:
            for _ in range(4):
                self.pass_time(ttl / 2)
                hold.ensure()
            self.assert_held_by("me")

    # Releasing

    def test_a_release_frees_it_and_a_second_changes_nothing(self) -> None:
        term = self.acquire()
        self.store.release(term)
        self.assert_free()
        self.store.release(term)
        self.acquire(holder="next")

    def test_a_release_under_an_older_grant_is_refused(self) -> None:
        term = self.acquire()
        self.store.revoke(self.name())
        self.acquire(holder="next")
        with self.assertRaises(LeaseLost):
            self.store.release(term)
        self.assert_held_by("next")

    def test_a_release_after_the_deadline_is_refused(self) -> None:
        term = self.acquire(ttl=SHORT)
        self.pass_time(SHORT)
        with self.assertRaises(LeaseLost):
            self.store.release(term)

    # Losing

    def test_a_revocation_frees_it_and_is_heard_at_the_next_renewal(self) -> None:
        reported: list[Term] = []
        with (
            self.assertRaises(LeaseLost),
            self.store.hold(self.name(), ttl=LONG, on_lost=reported.append) as hold,
        ):
            self.assertTrue(self.store.revoke(self.name(), reason="stuck", by="alice"))
            self.assert_free()
            with self.assertRaises(LeaseLost):
                hold.renew()
            self.assertTrue(hold.lost)
            self.wait_until(lambda: reported == [hold])

    def test_the_end_of_the_block_finds_a_revocation(self) -> None:
        with self.assertRaises(LeaseLost), self.store.hold(self.name(), ttl=LONG):
            self.store.revoke(self.name())

    def test_what_is_free_cannot_be_revoked(self) -> None:
        self.assertFalse(self.store.revoke(self.name()))
        self.store.release(self.acquire())
        self.assertFalse(self.store.revoke(self.name()))

    def test_current_tells_holder_token_and_deadline(self) -> None:
        term = self.acquire(holder="me", ttl=SHORT)
        incumbent = self.store.current(self.name())
        assert incumbent is not None
        self.assertEqual(incumbent.holder, "me")
        self.assertEqual(incumbent.fencing_token, term.fencing_token)
        self.assertEqual(incumbent.expires_at, term.expires_at)
        self.pass_time(SHORT)
        self.assert_free()

    # Waiting

    def test_what_is_held_is_listed_if_anything_is(self) -> None:
        held = getattr(self.store, "held", None)
        if held is None:
            self.skipTest("the store lists nothing")
        kept, given_back = self.acquire(), self.acquire(self.name("2"))
        self.store.release(given_back)
        short = self.acquire(self.name("3"), ttl=SHORT)
        self.pass_time(SHORT)
        names = {kept.resource, given_back.resource, short.resource}
        listed = {name: each for name, each in held().items() if name in names}
        self.assertEqual(listed, {kept.resource: self.store.current(kept.resource)})

    def test_a_waiter_gets_what_a_dead_holder_leaves(self) -> None:
        dead = self.acquire(holder="dead", ttl=SHORT)
        with self.store.hold(self.name(), ttl=LONG, wait=PATIENCE) as hold:
            self.assertGreater(hold.fencing_token, dead.fencing_token)

    def test_a_waiter_in_vain_hears_so(self) -> None:
        self.acquire(holder="rival")
        with (
            self.assertRaises(LeaseTimeout) as refusal,
            self.store.hold(self.name(), wait=0.1),
        ):
            self.fail("two hold it")
        self.assertIn(refusal.exception.holder, ("rival", ""))
        self.assert_held_by("rival")

    def test_a_waiter_that_is_asked_to_stop_does(self) -> None:
        self.acquire(holder="rival")
        stopping = threading.Event()
        stopping.set()
        with (
            self.assertRaises(LeaseTimeout),
            self.store.hold(self.name(), wait=None, stopping=stopping),
        ):
            self.fail("two hold it")

    # Coroutines

    def test_a_coroutine_holds_it(self) -> None:
        async def body() -> None:
            async with self.store.hold(self.name(), holder="me", ttl=LONG) as hold:
                hold.ensure()
                await sync_to_async(self.assert_held_by)("me")

        async_to_sync(body)()
        self.assert_free()

    def test_a_coroutine_that_loses_it_is_cancelled(self) -> None:
        async def body() -> None:
            async with asyncio.timeout(PATIENCE), self.store.hold(self.name(), ttl=LONG) as hold:
                await sync_to_async(self.store.revoke)(self.name())
                with self.assertRaises(LeaseLost):
                    await sync_to_async(hold.renew)()
                await asyncio.Event().wait()

        with self.assertRaises(LeaseLost):
            async_to_sync(body)()

    # Telling

    def test_signals_tell_what_this_process_does(self) -> None:
        with self.signals() as sent:
            term = self.acquire(holder="me")
            self.store.release(term)
            late = self.acquire(holder="late")
            self.store.revoke(self.name(), reason="stuck", by="alice")
            with self.assertRaises(LeaseLost):
                self.store.release(late)

        told = [(name, lease.lease_resource, lease.holder) for name, lease, _ in sent]
        self.assertEqual(
            told,
            [
                ("acquired", self.name(), "me"),
                ("released", self.name(), "me"),
                ("acquired", self.name(), "late"),
                ("revoked", self.name(), "late"),
                ("refused", self.name(), "late"),
            ],
        )
        self.assertEqual(sent[0][1].fencing_token, term.fencing_token)
        self.assertGreater(sent[3][1].fencing_token, late.fencing_token)
        self.assertEqual((sent[3][2]["reason"], sent[3][2]["by"]), ("stuck", "alice"))
        self.assertEqual(sent[4][2]["verb"], "release")

    def test_a_loss_is_told_once(self) -> None:
        with (
            self.signals() as sent,
            self.assertRaises(LeaseLost),
            self.store.hold(self.name(), holder="me", ttl=LONG) as hold,
        ):
            self.store.revoke(self.name())
            with self.assertRaises(LeaseLost):
                hold.renew()
            self.wait_until(lambda: "lost" in [name for name, _, _ in sent])
        ((lease, details),) = [(each, more) for name, each, more in sent if name == "lost"]
        self.assertEqual(lease.fencing_token, hold.fencing_token)
        self.assertTrue(details["reason"])

    # What not every store can

    def test_still_mine_proves_the_lease_or_refuses(self) -> None:
        with self.store.hold(self.name(), ttl=LONG) as hold:
            try:
                with hold.still_mine():
                    pass
            except UnsupportedByStore as refusal:
                self.assertIn("fencing token", str(refusal))

    def test_a_term_that_it_does_not_know_is_refused_and_not_ignored(self) -> None:
        asked: dict[str, Any] = {"priority": 3, "metadata": {"job": 7}, "max_hold": 2 * LONG}
        for name, value in asked.items():
            try:
                options: Any = {name: value}
                hold = self.store.hold(self.name(name), ttl=LONG, **options)
            except UnsupportedByStore as refusal:
                self.assertIn(name, str(refusal))
            else:
                with hold as term:
                    term.ensure()

    @contextmanager
    def signals(self) -> Iterator[Signals]:
        """Collect the signals about leases: name, lease and the other arguments."""
        sent: Signals = []
        receivers: list[tuple[Any, Callable[..., None]]] = []
        for name in ("acquired", "taken_over", "released", "revoked", "lost", "refused"):

            def receiver(lease: Any, _name: str = name, **details: Any) -> None:
                if lease.lease_resource.startswith(self._prefix) and not self.is_serving():
                    sent.append((_name, lease, details))

            signal = getattr(signals, name)
            signal.connect(receiver, weak=False)
            receivers.append((signal, receiver))
        try:
            yield sent
        finally:
            for signal, receiver in receivers:
                signal.disconnect(receiver)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for what another thread does."""
        for _ in range(int(PATIENCE * 100)):
            if condition():
                return
            time.sleep(0.01)
        self.fail("waited in vain")


class StoreRaces(_StoreTests):
    """Tests of several threads, which see what each other writes. Name it before a
    ``TransactionTestCase`` or a ``SimpleTestCase``."""

    rivals = 6
    rounds = 5

    def test_of_many_who_race_one_holds_at_a_time_and_tokens_rise(self) -> None:
        inside: list[int] = []
        most: list[int] = []
        tokens: list[int] = []

        def race(number: int) -> None:
            for _ in range(self.rounds):
                with self.store.hold(self.name(), wait=PATIENCE, holder=f"rival {number}") as hold:
                    inside.append(number)
                    most.append(len(inside))
                    tokens.append(hold.fencing_token)
                    hold.ensure()
                    inside.pop()

        self.run_together(race)
        self.assertEqual(set(most), {1})
        self.assertEqual(len(tokens), self.rivals * self.rounds)
        self.assertEqual(tokens, sorted(set(tokens)))

    def test_of_many_who_ask_at_once_one_gets_it(self) -> None:
        ready = threading.Barrier(self.rivals)
        won: list[int] = []

        def ask(number: int) -> None:
            ready.wait(PATIENCE)
            try:
                self.acquire(holder=f"rival {number}")
            except LeaseHeld:
                return
            won.append(number)

        self.run_together(ask)
        self.assertEqual(len(won), 1)
        self.assert_held_by(f"rival {won[0]}")

    def run_together(self, work: Callable[[int], None]) -> None:
        """Call ``work`` with a number on each of so many threads."""

        def whole(number: int) -> None:
            try:
                work(number)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(self.rivals) as threads:
            for rival in [threads.submit(whole, number) for number in range(self.rivals)]:
                rival.result(PATIENCE)
