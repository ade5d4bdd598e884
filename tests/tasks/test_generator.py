"""The generator: what is desired, what is acknowledged, and every batch under proof."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from django.db import InterfaceError, OperationalError, connection, transaction
from pytest_django import Settings

from leasing.exceptions import LeaseLost, StaleToken, StoreError
from leasing.holding import Term
from leasing.holding.keeper import keeper
from leasing.models import ApiToken, Lease
from leasing.stores import stores
from leasing.testing import expire as lose
from leasing.testing import manual_keeper
from tasks import generator
from tasks.generator import (
    Generator,
    generator_status,
    start_generator,
    start_unless_asked,
    stop_generator,
)
from tasks.models import GeneratorDesiredState, Task
from tasks.sample import SLEEP
from tests.factories import make_worker
from tests.leasing.stores.redis_servers import served
from tests.leasing.support import OtherSession, expire, just_before_the_update, usurp
from tests.limits import Limits
from tests.logs import logged
from tests.processes import wait_for

pytestmark = pytest.mark.django_db

RESOURCE = "leasing_tasks.generator"


def desired() -> GeneratorDesiredState:
    return GeneratorDesiredState.objects.get()


@pytest.fixture
def hold(transactional_db: None) -> Iterator[Term]:
    """The generator's lease, held by ann and renewed by nobody. What is refused is recorded apart
    from the transaction that this rolls back: in one of the test's, the record would outlast it."""
    hold = Lease.objects.hold(RESOURCE, holder="ann")
    with manual_keeper(stopped=False), suppress(LeaseLost), hold as term:
        yield term


# Wishing


def test_nothing_is_desired_at_first() -> None:
    status = generator_status()

    assert (status.is_running, status.status) == (False, "STOPPED")
    assert status.message
    assert (status.desired, status.lease) == (None, None)


def test_a_start_is_desired_until_somebody_takes_it_up() -> None:
    status = start_generator(by="alice", reason="a show")

    assert (status.is_running, status.status) == (True, "STARTED") and status.message
    assert (desired().wanted, desired().revision) == (True, 1)
    assert (desired().changed_by, desired().reason) == ("alice", "a show")
    assert str(desired()) == "started"


def test_a_stop_is_in_force_at_once() -> None:
    start_generator(by="alice")
    before = desired().changed_at

    status = stop_generator(by="bob")

    assert (status.is_running, status.status) == (False, "STOPPED")
    assert "bob" in status.message
    assert (desired().wanted, desired().revision) == (False, 2)
    assert desired().changed_at >= before
    assert str(desired()) == "stopped"


def test_a_stop_by_nobody_in_particular_names_nobody() -> None:
    start_generator()
    unnamed = stop_generator().message
    start_generator()

    assert stop_generator(by="bob").message.replace(" by bob", "") == unnamed


@pytest.mark.parametrize("change", [start_generator, stop_generator])
def test_the_same_state_again_changes_nothing(change: Callable[..., Any]) -> None:
    change(by="alice")
    before = GeneratorDesiredState.objects.values().get()

    change(by="bob", reason="again")

    assert GeneratorDesiredState.objects.values().get() == before


def test_a_first_stop_is_a_desired_state_too() -> None:
    stop_generator(by="alice")

    assert (desired().revision, desired().changed_by) == (1, "alice")


def test_names_and_reasons_that_are_too_long_are_cut() -> None:
    start_generator(by="a" * 300, reason="r" * 600)

    assert (len(desired().changed_by), len(desired().reason)) == (200, 500)


def test_a_generator_starts_by_itself_only_if_nobody_was_ever_asked() -> None:
    start_unless_asked()
    assert (desired().wanted, desired().revision) == (True, 1)

    stop_generator(by="alice")
    start_unless_asked()
    assert (desired().wanted, desired().revision, desired().changed_by) == (False, 2, "alice")


# Generating


def test_a_batch_stores_tasks_and_acknowledges_the_desired_state(hold: Term) -> None:
    start_generator()

    assert Generator(shortest=2, longest=3).batch(hold, 5)

    assert Task.objects.filter(name=SLEEP, queue="default").count() == 5
    for task in Task.objects.all():
        assert set(task.task_data) == {"sleep_duration_seconds"}
        assert 2 <= task.task_data["sleep_duration_seconds"] <= 3
    assert (desired().acknowledged_revision, desired().acknowledged_by) == (1, "ann")
    assert desired().acknowledged_at is not None


def test_a_generator_that_produces_is_running() -> None:
    start_generator()
    lease = Lease.objects.acquire(RESOURCE, holder="ann")
    assert generator_status().status == "STARTED"
    GeneratorDesiredState.objects.update(acknowledged_revision=1, acknowledged_by="ann")

    status = generator_status()

    assert (status.is_running, status.status) == (True, "RUNNING")
    assert "ann" in status.message
    assert status.lease == lease


@pytest.mark.parametrize("end", [expire, Lease.objects.release])
def test_without_a_holder_it_is_started_again(end: Callable[[Any], object]) -> None:
    start_generator()
    lease = Lease.objects.acquire(RESOURCE, holder="ann")
    GeneratorDesiredState.objects.update(acknowledged_revision=1, acknowledged_by="ann")

    end(lease)

    assert generator_status().status == "STARTED"


def test_another_holder_has_to_acknowledge_for_itself(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 0)
    usurp(Lease.objects.get(), holder="bob")

    assert generator_status().status == "STARTED"


def test_a_stop_that_is_not_acknowledged_says_by_whom(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 1)

    status = stop_generator(by="bob")
    assert "bob" in status.message and "ann" in status.message

    assert not Generator().batch(hold, 1)
    message = generator_status().message
    assert "bob" in message and "ann" not in message
    assert Task.objects.count() == 1


def test_a_desired_state_is_acknowledged_once(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 0)
    before = desired().acknowledged_at

    Generator().batch(hold, 0)

    assert desired().acknowledged_at == before


def test_a_batch_of_none_is_no_task(hold: Term) -> None:
    start_generator()

    assert Generator().batch(hold, 0)
    assert not Task.objects.exists()


@pytest.mark.usefixtures("queues")
def test_tasks_go_to_the_queue_that_was_asked_for(hold: Term) -> None:
    start_generator()

    Generator(queue="mail").batch(hold, 1)

    assert Task.objects.get().queue == "mail"


# Proof


def test_after_a_stop_nothing_is_stored(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 1)
    stop_generator()

    for _ in range(3):
        assert not Generator().batch(hold, 7)

    assert Task.objects.count() == 1


@contextmanager
def held_instead(hold: Term, holder: str) -> Iterator[Term]:
    """The lease of ``hold``, which expires and does not know it, held by another generator."""
    expire(Lease.objects.get())
    with Lease.objects.hold(RESOURCE, holder=holder) as other:
        yield other


@pytest.mark.parametrize("holder", ["bob", "ann"], ids=["another", "one of the same name"])
def test_a_generator_that_was_replaced_stores_nothing(hold: Term, holder: str) -> None:
    start_generator()
    Generator().batch(hold, 1)
    with held_instead(hold, holder) as other:
        Generator().batch(other, 2)
        with pytest.raises(StaleToken):
            Generator().batch(hold, 7)
        assert Generator().batch(other, 3)

    assert Task.objects.count() == 1 + 2 + 3
    assert (desired().acknowledged_by, desired().fence) == (holder, other.fencing_token)


def test_the_one_before_is_refused_before_the_first_task_is_stored(hold: Term) -> None:
    start_generator()
    with held_instead(hold, "bob") as other:
        Generator().batch(other, 0)
        with pytest.raises(StaleToken):
            Generator().batch(hold, 7)

    assert not Task.objects.exists()


def test_a_refused_generator_does_not_acknowledge(hold: Term) -> None:
    start_generator()
    with held_instead(hold, "bob") as other:
        Generator().batch(other, 0)
        stop_generator()
        with pytest.raises(StaleToken):
            Generator().batch(hold, 0)

    assert (desired().acknowledged_revision, desired().acknowledged_by) == (1, "bob")


def test_a_generator_that_knows_of_its_loss_stores_nothing(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 1)
    lose(hold)

    with pytest.raises(LeaseLost):
        Generator().batch(hold, 7)

    assert Task.objects.count() == 1


def test_the_lease_may_be_kept_elsewhere(settings: Settings) -> None:
    """In a database that the tasks are not in, or as here in the memory of the process."""
    settings.LEASING = {**settings.LEASING, "ENABLED": False}
    start_generator()
    with manual_keeper(stopped=False), Lease.objects.hold(RESOURCE, holder="ann") as hold:
        assert Generator().batch(hold, 2)

    assert not Lease.objects.exists()
    assert (Task.objects.count(), desired().fence) == (2, hold.fencing_token)


@pytest.mark.django_db(transaction=True)
def test_a_stop_waits_for_the_batch_under_way_and_comes_before_the_next(
    hold: Term, other_session: OtherSession
) -> None:
    start_generator()
    stops: list[Any] = []

    def stop_meanwhile() -> None:
        stops.append(other_session.start(stop_generator))

    with transaction.atomic(), just_before_the_update(stop_meanwhile):
        assert Generator().batch(hold, 3)
        stopped_early = stops[0].done() and stops[0].result().status == "STOPPED"

    stops[0].result(20)
    count = Task.objects.count()
    assert not stopped_early
    assert count == 3
    assert not Generator().batch(hold, 3)
    assert Task.objects.count() == count


def test_a_batch_is_stored_whole_or_not_and_so_is_its_acknowledgement(hold: Term) -> None:
    start_generator()

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if "INSERT INTO leasing_tasks_task" in sql.replace('"', ""):
            raise OperationalError("the disk is full")
        return execute(sql, *rest)

    with pytest.raises(OperationalError), connection.execute_wrapper(fail):
        Generator().batch(hold, 3)

    assert not Task.objects.exists()
    assert desired().acknowledged_revision == 0


# The end of a term


def end_term(hold: Term) -> None:
    Generator().withdraw(fence=hold.fencing_token)


def test_a_generator_that_ends_takes_back_its_acknowledgement(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 0)
    assert generator_status().status == "RUNNING"

    end_term(hold)

    assert (desired().acknowledged_revision, desired().acknowledged_by) == (0, "")
    assert desired().acknowledged_at is None
    assert generator_status().status == "STARTED"


def test_the_acknowledgement_of_a_stop_stays(hold: Term) -> None:
    start_generator()
    stop_generator()
    Generator().batch(hold, 0)

    end_term(hold)

    assert (desired().acknowledged_revision, desired().acknowledged_by) == (2, "ann")


def test_a_term_that_ends_before_it_sees_a_stop_leaves_nobody_to_wait_for(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 0)
    stop_generator()

    end_term(hold)

    assert (desired().acknowledged_revision, desired().acknowledged_by) == (0, "")


def test_the_acknowledgement_of_the_next_stays(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 0)
    with held_instead(hold, "bob") as other:
        Generator().batch(other, 0)
        end_term(hold)

    assert (desired().acknowledged_revision, desired().acknowledged_by) == (1, "bob")


# In another store

ELSEWHERE = {"GENERATOR_STORE": "central", "GENERATOR_LEASE": "shop.generator"}


class Network(httpx.HTTPTransport):
    """A network that a test may cut."""

    is_cut = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("connection refused", request=request)
        return super().handle_request(request)


def keep_elsewhere(settings: Settings, url: str = "http://127.0.0.1:1/api", **options: Any) -> None:
    """Have the generator's lease in a lease service."""
    central = {"BACKEND": "leasing.stores.http.HttpStore", "URL": url, **options}
    settings.LEASING = {**settings.LEASING, "STORES": {"central": central}}
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, **ELSEWHERE}


def test_the_status_of_a_generator_whose_lease_is_elsewhere_asks_nobody_else(
    settings: Settings,
) -> None:
    keep_elsewhere(settings)  # where nobody listens
    start_generator()
    Lease.objects.acquire(RESOURCE, holder="stranger")
    assert (generator_status().status, generator_status().store) == ("STARTED", "central")
    GeneratorDesiredState.objects.update(acknowledged_revision=1, acknowledged_by="ann")
    assert generator_status().status == "STARTED"  # it sends no heartbeats

    make_worker(name="ann", role="generator", slots={})
    running = generator_status()
    assert (running.status, running.holder, running.lease) == ("RUNNING", "ann", None)

    unheard = stop_generator(by="bob")
    assert (unheard.status, unheard.holder) == ("STOPPED", "ann")
    GeneratorDesiredState.objects.update(acknowledged_revision=2)
    assert generator_status().holder == ""


@pytest.mark.slow
def test_a_batch_is_stored_under_a_lease_in_redis(settings: Settings) -> None:
    with served() as (server,):
        central = {"BACKEND": "leasing.stores.redis.RedisStore", "URL": server.url}
        settings.LEASING = {**settings.LEASING, "STORES": {"central": central}}
        settings.TASK_QUEUE = {**settings.TASK_QUEUE, **ELSEWHERE}
        stores["central"].admit(is_nothing_held=True)  # type: ignore[attr-defined]
        start_generator()
        with stores["central"].hold("shop.generator", holder="ann") as held:
            Generator(name="ann").batch(held, 0)
            assert desired().fence == held.fencing_token
        with stores["central"].hold("shop.generator", holder="bob") as later:
            Generator(name="bob").batch(later, 0)
        assert desired().acknowledged_by == "bob"
        with pytest.raises(LeaseLost):
            Generator(name="ann").batch(held, 1)
        settings.LEASING = {}


@pytest.mark.parametrize("worker", [{"state": "gone"}, {"role": "worker"}])
def test_only_a_generator_that_sends_heartbeats_is_running(
    settings: Settings, worker: dict[str, Any]
) -> None:
    keep_elsewhere(settings)
    start_generator()
    GeneratorDesiredState.objects.update(acknowledged_revision=1, acknowledged_by="ann")

    make_worker(name="ann", **{"role": "generator", **worker})

    assert (generator_status().status, generator_status().holder) == ("STARTED", "")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_generator_that_was_killed_is_not_shown_under_the_name_of_the_next(
    settings: Settings, is_stopped: bool
) -> None:
    keep_elsewhere(settings, PATIENCE=0.0)  # where nobody listens
    start_generator()
    GeneratorDesiredState.objects.update(acknowledged_revision=1, acknowledged_by="ann")
    make_worker(name="ann", role="generator", slots={})
    if is_stopped:
        stop_generator()
    assert generator_status().holder == "ann"

    with suppress(StoreError):
        Generator(name="ann").take_turn(threading.Event())

    assert generator_status().holder == ""
    assert generator_status().status == ("STOPPED" if is_stopped else "STARTED")


def test_a_generator_that_starts_leaves_the_acknowledgements_of_others_and_of_a_stop() -> None:
    start_generator()
    stop_generator()
    for name, revision in (("bob", 1), ("ann", 2)):
        GeneratorDesiredState.objects.update(acknowledged_revision=revision, acknowledged_by=name)
        Generator(name="ann").take_turn(threading.Event())
        assert desired().acknowledged_by == name


def test_after_a_change_to_a_store_of_lower_tokens_the_fence_can_be_lowered(hold: Term) -> None:
    start_generator()
    Generator().batch(hold, 0)
    before = desired().fence
    GeneratorDesiredState.objects.update(fence=before + 1)
    with pytest.raises(StaleToken):
        Generator().batch(hold, 1)

    GeneratorDesiredState.objects.update(fence=0)

    assert Generator().batch(hold, 1)
    assert desired().fence == before


# Running


@contextmanager
def generating(kind: type[Generator] = Generator, **options: Any) -> Iterator[threading.Event]:
    """A generator on a thread; stopped at the end."""
    stopping = threading.Event()
    made = kind(**{"rate": 100, **options})
    thread = threading.Thread(target=made.run, args=(stopping,), daemon=True)
    thread.start()
    try:
        yield stopping
    finally:
        stopping.set()
        thread.join(20)
        assert not thread.is_alive()
        keeper.stop()


@pytest.fixture
def _quick(limits: Limits) -> None:
    limits(look_every=0.02)


in_threads = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("_quick")]


class TestInThreads:
    """With a generator at work during the test."""

    pytestmark = in_threads

    def test_it_stands_by_until_it_is_desired_and_after_a_stop(self) -> None:
        with generating(name="ann"):
            assert generator_status().status == "STOPPED"
            start_generator()
            wait_for(lambda: Task.objects.count() > 3)
            assert generator_status().status == "RUNNING"
            stop_generator()
            count = Task.objects.count()
            wait_for(lambda: desired().acknowledged_revision == 2)
            wait_for(lambda: not Lease.objects.active().exists())
            assert Task.objects.count() == count
            start_generator()
            wait_for(lambda: Task.objects.count() > count)

    def test_one_generates_and_the_other_takes_over(self) -> None:
        start_generator()
        with generating(name="ann") as ann:
            wait_for(lambda: generator_status().status == "RUNNING")
            with generating(name="bob"):
                ann.set()
                wait_for(lambda: desired().acknowledged_by == "bob")
                assert (generator_status().status, generator_status().holder) == ("RUNNING", "bob")
                count = Task.objects.count()
                wait_for(lambda: Task.objects.count() > count)

    def test_a_generator_whose_lease_was_revoked_stands_by_and_comes_back(
        self, caplog: pytest.LogCaptureFixture, settings: Settings
    ) -> None:
        settings.LEASING = {"TTL": 3}  # a second until it hears of that
        start_generator()
        with generating(name="ann"):
            wait_for(lambda: generator_status().status == "RUNNING")
            before = Lease.objects.get().grants
            Lease.objects.revoke("wrong host", "root")
            wait_for(lambda: Lease.objects.get().grants > before)
            wait_for(lambda: generator_status().status == "RUNNING")

        lost = [each for each in caplog.records if "stands_by" in getattr(each, "event", "")]
        assert lost and "leasing_tasks.generator" in lost[0].reason  # type: ignore[attr-defined]

    def test_while_another_holds_the_lease_it_stands_by(self, caplog: Any) -> None:
        caplog.set_level(logging.DEBUG, "tasks")
        start_generator()
        Lease.objects.acquire(RESOURCE, holder="other")
        with generating(name="ann"):
            wait_for(lambda: "generator.stands_by" in logged(caplog))

        assert not Task.objects.exists()

    @pytest.mark.parametrize("error", [OperationalError("away"), InterfaceError("closed")])
    def test_it_goes_on_when_the_database_comes_back(self, error: Exception, caplog: Any) -> None:
        failures = iter(range(2))

        class Failing(Generator):
            def batch(self, hold: Term, size: int) -> bool:
                if next(failures, None) is not None:
                    raise error
                return super().batch(hold, size)

        start_generator()
        with generating(Failing):
            wait_for(lambda: Task.objects.exists())

        assert logged(caplog).count("generator.failed") == 1, "an outage is told once"
        assert "outage.ended" in logged(caplog)

    def test_a_lease_service_that_is_away_ends_its_term_and_brings_the_next(
        self, settings: Settings, live_server: Any
    ) -> None:
        _, token = ApiToken.objects.issue("generator", scopes=["leasing.change_lease"])
        network, url = Network(), f"{live_server.url}/api"
        keep_elsewhere(settings, url, TOKEN=token, TRANSPORT=network, PATIENCE=0.2)
        make_worker(name="ann", role="generator", slots={})
        start_generator()
        with generating(name="ann", ttl=2):
            wait_for(lambda: generator_status().status == "RUNNING")
            first = desired().fence

            network.is_cut = True
            wait_for(lambda: generator_status().status == "STARTED")
            count = Task.objects.count()
            assert stop_generator().status == "STOPPED"
            start_generator()
            network.is_cut = False

            wait_for(lambda: generator_status().status == "RUNNING")
            wait_for(lambda: Task.objects.count() > count)
            assert desired().fence > first

        assert generator_status().status == "STARTED"
        assert not Lease.objects.filter(resource=RESOURCE).exists()
        assert Lease.objects.get(resource="shop.generator").released_at is not None

    def test_it_leaves_the_lease_free_when_it_ends(self) -> None:
        start_generator()
        with generating():
            wait_for(lambda: generator_status().status == "RUNNING")

        assert Lease.objects.get().released_at is not None
        assert generator_status().status == "STARTED"


# How many


class Beats:
    """Runs a generator's loop without a database: each wait is a beat."""

    def __init__(self, beats: int) -> None:
        self.left = beats
        self.stopping = threading.Event()
        self.waits: list[float] = []
        self.lost = self

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.left -= 1
        if not self.left:
            self.stopping.set()

    def ensure(self) -> None: ...


@pytest.mark.parametrize(
    ("rate", "seconds", "expected"),
    [(1.0, 20, 20), (0.1, 100, 10), (3.0, 10, 30), (7.5, 60, 450), (1000.0, 2, 2000)],
)
def test_as_many_tasks_are_made_as_the_rate_says(
    rate: float, seconds: float, expected: int
) -> None:
    made: list[int] = []

    class Counting(Generator):
        def batch(self, hold: Term, size: int) -> bool:
            made.append(size)
            return True

    interval = min(generator.LOOK_EVERY, max(0.1, 1 / rate))
    beats = Beats(round(seconds / interval))

    Counting(rate=rate).generate(beats, beats.stopping)  # type: ignore[arg-type]

    assert made[0] == 1, "the first comes at once"
    assert sum(beats.waits) == pytest.approx(seconds, rel=0.05)
    assert abs(sum(made) - expected) <= max(1, rate * interval)  # the last beat is not over
    assert max(beats.waits) <= generator.LOOK_EVERY


def test_durations_lie_where_they_were_asked_for(hold: Term) -> None:
    start_generator()
    Generator(shortest=1, longest=60).batch(hold, 200)

    seconds = [each.task_data["sleep_duration_seconds"] for each in Task.objects.all()]
    assert min(seconds) >= 1
    assert max(seconds) <= 60
    assert len(set(seconds)) > 50
