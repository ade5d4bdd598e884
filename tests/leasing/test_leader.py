"""Leaders: terms and campaigns, one after the other and never two at once.

Most of it is about holds alone, and runs in memory; what is marked runs on the database.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from leasing import Leader
from leasing import leader as leasing_leader
from leasing.db import side_connection
from leasing.exceptions import InvalidResource, InvalidTTL, LeaseInTransaction, LeaseLost
from leasing.holding.keeper import keeper
from leasing.holding.term import Term
from leasing.leader import Incumbent
from leasing.models import Lease
from leasing.stores.memory import MemoryStore
from leasing.stores.rows import RowStore
from leasing.testing import (
    assert_free,
    assert_held,
    events_of,
    expire,
    hold_elsewhere,
    in_memory,
    revoke,
)
from leasing.testing.keeper import ManualKeeper
from leasing.validation.terms import Terms
from leasing.waiting import notifier
from tests.factories import make_lease
from tests.leasing.stopped import Waits
from tests.leasing.support import PATIENCE
from tests.limits import Limits
from tests.logs import logged
from tests.processes import wait_for

on_the_database = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    """In memory, unless a test is marked."""
    on_rows = request.node.get_closest_marker("django_db")
    with nullcontext() if on_rows else in_memory():
        yield
        keeper.stop()  # and so what it still has to tell is told before the next test


@pytest.fixture
def leader() -> Leader:
    return Leader("scheduler", ttl=30, holder="ann")


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


class OtherThreads:
    """Threads other than the test's, each with a connection of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4)

    def start(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        def whole() -> Any:
            try:
                return work(*args)
            finally:
                connections.close_all()

        return self._threads.submit(whole)

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def other_threads(stopping: threading.Event) -> Iterator[OtherThreads]:
    threads = OtherThreads()
    yield threads
    stopping.set()
    threads.close()


def events() -> list[str]:
    """Return the events, but for the losses: those are noted by a thread that takes its time."""
    return [event.kind for event in events_of("scheduler") if event.kind != "lost"]


def campaigns() -> bool:
    """Return True if a leader in this process waits to lead."""
    return any(known.waiters.get("scheduler") for known in notifier._notifiers.values())


def lose(term: Term) -> None:
    """Revoke ``term`` as an operator, and report it to its holder."""
    revoke("scheduler")
    with pytest.raises(LeaseLost):
        term.renew()


def soon(awaited: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine that must end before long."""

    async def limited() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await awaited()

    return asyncio.run(limited())


# What cannot lead


@pytest.mark.parametrize("name", ["", " scheduler", "a\nb", "x" * 201])
def test_a_name_that_no_lease_could_have_is_refused_at_once(name: str) -> None:
    with pytest.raises(InvalidResource):
        Leader(name)


def test_terms_that_no_lease_could_have_are_refused_at_once() -> None:
    with pytest.raises(InvalidTTL):
        Leader("scheduler", ttl=0)
    with pytest.raises(InvalidResource):
        Leader("scheduler", holder="")


@on_the_database
@pytest.mark.parametrize("campaign", ["loop", "block"])
def test_inside_a_transaction_nobody_campaigns(leader: Leader, campaign: str) -> None:
    with pytest.raises(LeaseInTransaction), transaction.atomic():
        if campaign == "loop":
            next(leader.terms())
        else:
            leader.__enter__()
    with leader:
        pass  # and the refused campaign is over


def test_one_leader_is_in_one_campaign_at_a_time(leader: Leader) -> None:
    with leader as term:
        with pytest.raises(RuntimeError, match="already campaigning"), leader:
            pass
        with pytest.raises(RuntimeError, match="already campaigning"):
            next(leader.terms())
        term.ensure()
    with leader:
        pass


# The loop


@on_the_database
def test_each_turn_of_the_loop_is_a_term_and_the_lease_is_given_back_between(
    leader: Leader,
) -> None:
    terms = []
    for term in leader.terms():
        assert_held("scheduler", by=term)
        terms.append(term)
        if len(terms) == 3:
            break

    assert_free("scheduler")
    tokens = [term.fencing_token for term in terms]
    assert tokens == sorted(set(tokens))
    assert events() == ["acquired", "released"] * 3


def test_the_term_of_an_earlier_turn_is_over_for_ever(leader: Leader) -> None:
    terms = leader.terms()
    first, second = next(terms), next(terms)

    assert second.valid
    assert not first.valid
    with pytest.raises(LeaseLost):
        first.ensure()
    terms.close()


def test_a_loop_that_fails_gives_the_lease_back(leader: Leader) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in leader.terms():
            raise ZeroDivisionError
    gc.collect()  # the loop may live in the traceback

    assert_free("scheduler")
    with leader:
        pass


def test_after_a_loss_it_campaigns_again(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasing")
    terms = []
    for term in leader.terms():
        terms.append(term)
        if len(terms) == 2:
            break
        lose(term)

    assert terms[1].fencing_token > terms[0].fencing_token
    assert events()[:3] == ["acquired", "revoked", "acquired"]
    assert "leader.term_lost" in logged(caplog, resource="scheduler", holder="ann")


def test_asked_to_stop_the_loop_ends_after_its_turn(
    leader: Leader, stopping: threading.Event
) -> None:
    turns = 0
    for _ in leader.terms(stopping):
        turns += 1
        stopping.set()

    assert turns == 1
    assert_free("scheduler")


def test_who_was_asked_to_stop_before_does_not_even_campaign(
    leader: Leader, stopping: threading.Event
) -> None:
    stopping.set()

    assert list(leader.terms(stopping)) == []
    assert events() == []


def test_a_campaign_ends_promptly_when_asked_to_stop_and_does_not_win_after_that(
    leader: Leader,
    stopping: threading.Event,
    other_threads: OtherThreads,
    limits: Limits,
) -> None:
    # The next poll is far away.
    limits(pause=60.0)
    with hold_elsewhere("scheduler", "bob"):
        campaign = other_threads.start(lambda: list(leader.terms(stopping)))
        wait_for(campaigns)
        expire("scheduler")  # nobody is told of that

        stopping.set()
        assert campaign.result(PATIENCE / 2) == []

    assert "taken_over" not in events()


@on_the_database
def test_the_next_leads_when_the_first_leaves(
    leader: Leader, stopping: threading.Event, other_threads: OtherThreads
) -> None:
    other = Leader("scheduler", ttl=30, holder="bob")
    led = []

    def campaign() -> None:
        for term in other.terms(stopping):
            led.append(term.holder)
            stopping.set()

    with leader:
        waiting = other_threads.start(campaign)
        wait_for(lambda: campaigns())
        assert led == []
    waiting.result(PATIENCE)

    assert led == ["bob"]
    assert events() == ["acquired", "released"] * 2


@on_the_database
def test_of_several_candidates_at_most_one_believes_to_lead_at_any_time(
    stopping: threading.Event, other_threads: OtherThreads
) -> None:
    inside, most, turns = [], [], []

    def campaign(name: str) -> None:
        for term in Leader("scheduler", ttl=30, holder=name).terms(stopping):
            inside.append(name)
            most.append(len(inside))
            turns.append(term.fencing_token)
            inside.remove(name)
            if len(turns) > 20:
                stopping.set()

    for campaigning in [other_threads.start(campaign, name) for name in ("ann", "bob", "cyd")]:
        campaigning.result(PATIENCE)

    assert set(most) == {1}
    assert turns == sorted(set(turns))


class Asleep(MemoryStore):
    """The process sleeps through its first term, between winning and leading."""

    def __init__(self) -> None:
        super().__init__()
        self.granted_to: list[Term] = []

    def granted(self, ask: Callable[[], Term]) -> Term:
        grant = super().granted(ask)
        self.granted_to.append(grant)
        if len(self.granted_to) == 1:
            grant.sent_at -= 60
            self.revoke(grant.resource, reason="it slept")  # as after a minute
        return grant


@pytest.mark.parametrize("campaign", ["loop", "block", "coroutine"])
def test_a_term_that_is_over_before_it_is_handed_out_is_not(campaign: str) -> None:
    store, held = Asleep(), []
    leader = Leader("scheduler", ttl=30, store=store)
    terms = leader.terms()

    async def body() -> None:
        async with leader as term:
            await asyncio.sleep(0)  # and nothing of the first is left to cancel this
            assert term.valid
            held.append(term)

    match campaign:
        case "loop":
            held.append(next(terms))
        case "block":
            held.append(leader.__enter__())
        case "coroutine":
            soon(body)

    _, second = store.granted_to
    (term,) = held
    assert term.fencing_token == second.fencing_token
    assert term.valid is (campaign != "coroutine")


# The database is away


class Away(MemoryStore):
    """A store that raises its errors first, one at each question."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.asked = 0
        self._errors = iter(errors)

    def grant(self, resource: str, terms: Terms) -> Term:
        self._fail()
        return super().grant(resource, terms)

    def current(self, resource: str) -> Incumbent | None:
        self._fail()
        return super().current(resource)

    def _fail(self) -> None:
        self.asked += 1
        for error in self._errors:
            raise error


AWAY = OperationalError("nobody is there")


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_while_the_database_is_away_the_campaign_goes_on(
    caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    leader = Leader("scheduler", store=Away(AWAY, AWAY))

    async def body() -> None:
        async with leader as term:
            term.ensure()

    if kind == "coroutine":
        soon(body)
    else:
        with leader as term:
            term.ensure()

    reported = logged(caplog, resource="scheduler", error="nobody is there")
    assert reported == ["leader.campaign_failed"] * 2


def test_a_campaign_without_a_database_ends_when_asked_to_stop(
    stopping: threading.Event, other_threads: OtherThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing_leader, "pauses", lambda **options: iter([600.0] * 9))
    away = Away(*[AWAY] * 9)
    leader = Leader("scheduler", store=away)
    campaign = other_threads.start(lambda: list(leader.terms(stopping)))
    wait_for(lambda: away.asked)

    stopping.set()
    assert campaign.result(PATIENCE / 2) == []


def test_whatever_else_goes_wrong_is_raised() -> None:
    leader = Leader("scheduler", store=Away(*[ZeroDivisionError()] * 3))
    for campaign in (
        leader.__enter__,
        lambda: next(leader.terms()),
        lambda: soon(leader.__aenter__),
    ):
        with pytest.raises(ZeroDivisionError):
            campaign()

    with leader:
        pass


@on_the_database
@pytest.mark.usefixtures("on_postgresql")
def test_a_candidate_whose_connection_is_cut_campaigns_over_another(
    leader: Leader, stopping: threading.Event, other_threads: OtherThreads
) -> None:
    make_lease(resource="scheduler", holder="bob", ttl=600)

    def campaign() -> str:
        for term in leader.terms(stopping):
            stopping.set()
            return term.holder
        return "nobody"

    campaigning = other_threads.start(campaign)
    wait_for(campaigns)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    revoke("scheduler")

    assert campaigning.result(PATIENCE) == "ann"


class Swallowed:
    """A database whose answer to the first call does not arrive before it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()
        call = getattr(RowStore, verb)

        def swallowed(rows: Any, *args: Any, **options: Any) -> Any:
            answer = call(rows, *args, **options)
            if not self.reached.is_set():
                self.reached.set()
                assert self.let_go.wait(PATIENCE)
            return answer

        monkeypatch.setattr(RowStore, verb, swallowed)


@on_the_database
def test_a_candidate_who_is_not_answered_ends_when_asked_to_stop(
    leader: Leader,
    stopping: threading.Event,
    other_threads: OtherThreads,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    limits(stop_timeout=0.1)
    network = Swallowed(monkeypatch, "attempt")
    campaign = other_threads.start(lambda: list(leader.terms(stopping)))
    assert network.reached.wait(PATIENCE)

    stopping.set()
    assert campaign.result(PATIENCE / 2) == []

    # It had won, and nobody is there to lead.
    network.let_go.set()
    wait_for(lambda: events() == ["acquired", "released"])


@on_the_database
def test_a_candidate_who_is_not_answered_campaigns_over_another_connection(
    leader: Leader,
    other_threads: OtherThreads,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(side_connection, "patience", lambda: 0.1)
    network = Swallowed(monkeypatch, "_mark_wanted")
    bob = Lease.objects.acquire("scheduler", holder="bob")
    pauses = iter([0.0] * 99)
    monkeypatch.setattr(leasing_leader, "pauses", lambda **options: pauses)

    def release() -> None:
        wait_for(lambda: "the database did not answer in time" in caplog.text)
        Lease.objects.release(bob)

    other_threads.start(release)
    with leader as term:
        assert term.holder == "ann"

    network.let_go.set()


@on_the_database
def test_a_leader_who_is_not_answered_when_it_leaves_leaves(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(side_connection, "patience", lambda: 0.1)
    network = Swallowed(monkeypatch, "release")

    for _ in leader.terms():
        break
    network.let_go.set()

    assert "lease.unreleased" in logged(caplog, resource="scheduler")


# The block


def test_leaving_a_block_raises_when_the_term_was_lost(leader: Leader) -> None:
    with pytest.raises(LeaseLost, match="revoked"), leader as term:
        lose(term)
    with leader:
        pass


def test_the_error_of_a_block_comes_before_its_loss(leader: Leader) -> None:
    with pytest.raises(ZeroDivisionError), leader as term:
        lose(term)
        raise ZeroDivisionError


@on_the_database
def test_a_block_of_a_coroutine_leads_and_gives_the_lease_back(leader: Leader) -> None:
    async def body() -> None:
        async with leader as term:
            assert await asyncio.to_thread(in_thread, leader.current) == Incumbent(
                "ann", term.fencing_token, term.expires_at
            )

    soon(body)
    assert_free("scheduler")


def test_the_block_of_a_coroutine_is_cancelled_when_its_term_is_lost(leader: Leader) -> None:
    async def body() -> None:
        async with leader as term:
            await asyncio.to_thread(in_thread, lose, term)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost, match="revoked"):
        soon(body)
    with leader:
        pass


def test_a_coroutine_that_is_cancelled_while_it_campaigns_is_free_for_the_next(
    leader: Leader,
) -> None:
    async def body() -> None:
        task = asyncio.create_task(leader.__aenter__())
        while not campaigns():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with hold_elsewhere("scheduler"):
        soon(body)
    with leader:
        pass


# The decorator


def test_a_decorated_function_leads_until_it_returns(leader: Leader) -> None:
    @leader.lead
    def main(term: Term) -> int:
        assert_held("scheduler", by=term)
        return term.fencing_token

    assert main.__name__ == "main"
    assert main() == events_of("scheduler")[-1].fencing_token
    assert_free("scheduler")


@pytest.mark.parametrize("hears", [True, False], ids=["it hears of it", "it returns from it"])
def test_a_decorated_function_is_called_again_when_its_term_is_lost(
    leader: Leader, hears: bool
) -> None:
    terms = []

    @leader.lead
    def main(term: Term) -> int:
        terms.append(term)
        if len(terms) == 1:
            lose(term)
            if hears:
                term.ensure()
        return len(terms)

    assert main() == 2


@pytest.mark.parametrize("error", [LeaseLost("report:42", "taken"), ZeroDivisionError()])
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_goes_wrong_in_what_is_decorated_is_raised_and_the_lease_given_back(
    leader: Leader, kind: str, error: Exception
) -> None:
    def fails(term: Term) -> None:
        raise error

    @leader.lead
    async def main(term: Term) -> None:
        fails(term)

    with pytest.raises(type(error)):
        leader.lead(fails)() if kind == "function" else soon(main)
    assert_free("scheduler")


def test_a_decorated_function_that_is_asked_to_stop_returns_nothing(
    leader: Leader, stopping: threading.Event
) -> None:
    @leader.lead
    def main(term: Term) -> str:
        stopping.set()
        lose(term)
        return "never"

    assert main(stopping) is None


def test_a_decorated_coroutine_leads_until_it_returns(leader: Leader) -> None:
    @leader.lead
    async def main(term: Term) -> int:
        return term.fencing_token

    assert soon(main) == events_of("scheduler")[-1].fencing_token
    assert_free("scheduler")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_has_returned_before_it_heard_of_a_loss_has_returned(
    leader: Leader, kind: str
) -> None:
    calls = []

    def returns(term: Term) -> str:
        calls.append(term)
        revoke("scheduler")
        return "done"

    @leader.lead
    async def main(term: Term) -> str:
        return returns(term)

    assert (leader.lead(returns)() if kind == "function" else soon(main)) == "done"
    assert len(calls) == 1


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_decorated_coroutine_is_cancelled_and_called_again_when_its_term_is_lost(
    leader: Leader, stubborn: bool
) -> None:
    terms = []

    @leader.lead
    async def main(term: Term) -> int:
        terms.append(term)
        if len(terms) == 1:
            await asyncio.to_thread(in_thread, lose, term)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        return len(terms)

    assert soon(main) == 2


def test_a_decorated_coroutine_that_is_cancelled_gives_the_lease_back(leader: Leader) -> None:
    begun = asyncio.Event()

    @leader.lead
    async def main(term: Term) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def body() -> None:
        task = asyncio.ensure_future(main())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    soon(body)
    assert_free("scheduler")


# Resigning


@on_the_database
def test_who_resigns_hears_of_it_before_anybody_else_can_lead(leader: Leader) -> None:
    with leader as term:
        leader.resign()

        assert term.lost.is_set()
        assert not term.valid
        with pytest.raises(LeaseLost, match="its leader resigned"):
            term.ensure()
        assert_held("scheduler")  # until the body has left
    assert_free("scheduler")
    assert events() == ["acquired", "released"]


def test_a_loop_that_resigned_stands_aside_and_campaigns_again(
    leader: Leader, clocks: ManualKeeper
) -> None:
    terms = []
    for term in leader.terms():
        terms.append(term)
        if len(terms) == 2:
            break
        leader.resign()

    assert clocks.passed == 2.0
    assert events() == ["acquired", "released"] * 2


def test_standing_aside_ends_when_asked_to_stop(
    leader: Leader,
    stopping: threading.Event,
    other_threads: OtherThreads,
    limits: Limits,
) -> None:
    limits(resigned_for=600.0)
    resigned = threading.Event()

    def campaign() -> None:
        for _ in leader.terms(stopping):
            leader.resign()
            resigned.set()

    campaigning = other_threads.start(campaign)
    assert resigned.wait(PATIENCE)
    wait_for(lambda: events() == ["acquired", "released"])
    stopping.set()
    campaigning.result(PATIENCE / 2)


def test_a_resignation_is_no_loss_to_anybody_else(leader: Leader) -> None:
    with leader:
        leader.resign()
    keeper.stop()  # all that was to be told is

    assert [event.kind for event in events_of("scheduler")] == ["acquired", "released"]


def test_somebody_else_may_make_a_leader_resign(
    leader: Leader, other_threads: OtherThreads
) -> None:
    with leader as term:
        other_threads.start(leader.resign)
        assert term.lost.wait(PATIENCE)
    assert_free("scheduler")


def test_the_error_of_a_block_that_resigned_is_raised_and_the_lease_given_back(
    leader: Leader,
) -> None:
    with pytest.raises(ZeroDivisionError), leader:
        leader.resign()
        raise ZeroDivisionError
    assert_free("scheduler")

    async def body() -> None:
        async with leader:
            leader.resign()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        soon(body)
    assert_free("scheduler")


@on_the_database
def test_a_coroutine_that_resigned_is_cancelled_and_goes_on_behind_its_block(
    leader: Leader,
) -> None:
    async def body() -> str:
        async with leader:
            leader.resign()
            await asyncio.Event().wait()
        return "went on"

    assert soon(body) == "went on"
    assert_free("scheduler")
    assert events() == ["acquired", "released"]


def test_somebody_elses_cancellation_is_not_taken_for_the_resignation(leader: Leader) -> None:
    begun = asyncio.Event()

    async def main() -> None:
        async with leader:
            begun.set()
            await asyncio.Event().wait()

    async def body() -> None:
        task = asyncio.ensure_future(main())
        await begun.wait()
        task.cancel()
        leader.resign()
        with pytest.raises(asyncio.CancelledError):
            await task

    soon(body)
    assert_free("scheduler")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_is_decorated_is_called_again_after_it_resigned(
    leader: Leader, clocks: ManualKeeper, kind: str
) -> None:
    terms = []

    def once_again(term: Term) -> int:
        terms.append(term)
        if len(terms) == 1:
            leader.resign()
        return len(terms)

    if kind == "function":
        assert leader.lead(once_again)() == 2
    else:

        @leader.lead
        async def main(term: Term) -> int:
            return once_again(term)

        assert soon(main) == 2
    assert clocks.passed == 2.0


def test_who_does_not_lead_resigns_from_nothing(leader: Leader, clocks: ManualKeeper) -> None:
    leader.resign()
    terms = []
    for term in leader.terms():
        terms.append(term)
        if len(terms) == 2:
            break
        lose(term)
        leader.resign()  # of a term that is not its own any more

    leader.resign()
    assert clocks.passed == 0
    assert events() == ["acquired", "revoked", "acquired", "released"]


# Looking


@on_the_database
def test_anybody_can_ask_who_leads(leader: Leader) -> None:
    asker = Leader("scheduler")
    assert asker.current() is None
    with leader as term:
        now = asker.current()
        assert now is not None
        assert (now.holder, now.fencing_token) == ("ann", term.fencing_token)
        assert now.expires_at == Lease.objects.get().expires_at
    assert asker.current() is None


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["free", "expired", "released", "revoked"])
def test_nobody_leads_where_nobody_holds(state: str) -> None:
    make_lease(resource="scheduler", state=state)
    make_lease(resource="another", state="active")

    assert Leader("scheduler").current() is None


def reported(watching: Iterator[Incumbent | None]) -> str | None:
    leads = next(watching)
    return None if leads is None else leads.holder


def test_who_watches_is_told_of_each_change_and_of_nothing_else(
    leader: Leader, clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, terms = Waits(clocks, monkeypatch), Leader("scheduler", holder="bob").terms()

    def lead_again() -> None:
        next(terms)
        next(terms)

    for number, do in enumerate(
        (
            leader.__enter__,
            clocks.renew,
            lambda: leader.__exit__(None, None, None),
            # One leader after the other, with nobody seen in between, and one after itself.
            lambda: next(terms),
            lead_again,
            terms.close,
        ),
        start=1,
    ):
        waits.after(3.0 * number, do)
    watching = Leader("scheduler").watch()

    assert [reported(watching) for _ in range(6)] == [None, "ann", None, "bob", "bob", None]
    assert 18 <= clocks.passed <= 19
    assert len(waits.seconds) >= 18
    assert all(0.8 <= length <= 1.0 for length in waits.seconds)


def test_watching_ends_when_asked_to_stop(
    stopping: threading.Event, other_threads: OtherThreads
) -> None:
    heard: list[Incumbent | None] = []
    watching = other_threads.start(lambda: heard.extend(Leader("scheduler").watch(stopping)))
    stopping.set()
    watching.result(PATIENCE / 2)

    assert heard in ([], [None])


def test_the_loss_of_another_lease_ends_leading_and_watching(
    leader: Leader, other_threads: OtherThreads
) -> None:
    """``hold.lost`` is an event that is false until it is set."""
    with Lease.objects.hold("crane:1") as crane:
        watching, terms = leader.watch(crane.lost), leader.terms(crane.lost)
        assert next(watching) is None
        assert next(terms).valid
        crane.lost.set()
        for each in (watching, terms):
            assert other_threads.start(list, each).result(PATIENCE / 2) == []


def test_who_watches_waits_for_a_database_that_is_away(
    clocks: ManualKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    assert next(Leader("scheduler", store=Away(AWAY, AWAY)).watch()) is None
    assert logged(caplog, resource="scheduler") == ["leader.unseen"] * 2
    assert clocks.passed >= 1.6


# In users' tests


def test_where_clocks_stand_still_nobody_waits(leader: Leader, clocks: ManualKeeper) -> None:
    terms = leader.terms()
    next(terms)
    leader.resign()
    watching = leader.watch()
    assert reported(watching) == "ann"
    next(terms)
    assert clocks.passed >= 2
    terms.close()
    assert reported(watching) is None


def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    finally:
        connections.close_all()
