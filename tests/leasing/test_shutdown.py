"""SIGTERM and SIGINT to a program that holds leases: they are released. Each test sends the
signals to its own process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from leasing import shutdown
from leasing.exceptions import LeaseTimeout
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.stores.rows import RowStore
from leasing.testing import assert_free, assert_held, hold_elsewhere, in_memory
from tests.leasing.support import PATIENCE
from tests.limits import Limits
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    wait_for(lambda: "stop-signals" not in {thread.name for thread in threading.enumerate()})


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_block_that_is_asked_to_stop_leaves_and_releases(number: int) -> None:
    with shutdown() as stopping, Lease.objects.hold("crane:1"):
        assert not stopping.is_set()
        send(number)
        assert stopping.wait(PATIENCE)
        assert_held("crane:1")

    assert_free("crane:1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_interrupts_the_block_and_releases(number: int) -> None:
    with (
        pytest.raises(SystemExit) as ending,
        shutdown() as stopping,
        Lease.objects.hold("crane:1"),
    ):
        send()
        stopping.wait(PATIENCE)
        send(number)
        time.sleep(PATIENCE)

    assert ending.value.code == 128 + number
    assert_free("crane:1")


def interrupted_as_it_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    release = RowStore.release

    def with_signal(store: RowStore, grant: Term) -> None:
        send(signal.SIGINT)
        release(store, grant)

    monkeypatch.setattr(RowStore, "release", with_signal)
    with pytest.raises(SystemExit), shutdown() as stopping, Lease.objects.hold("crane:1"):
        send()
        stopping.wait(PATIENCE)
        send()


def test_a_third_signal_does_not_interrupt_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_as_it_releases(monkeypatch)

    assert_free("crane:1")


def test_a_release_that_takes_long_can_be_interrupted_and_is_left_to_its_ttl(
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    limits(release_patience=0.0)

    interrupted_as_it_releases(monkeypatch)

    assert_held("crane:1")


def test_a_block_that_does_not_look_is_interrupted_when_its_grace_is_over() -> None:
    began = time.monotonic()
    with pytest.raises(SystemExit), shutdown(grace=0.1), Lease.objects.hold("crane:1"):
        send()
        time.sleep(PATIENCE)

    assert 0.1 <= time.monotonic() - began < PATIENCE
    assert_free("crane:1")


def test_a_block_that_leaves_within_its_grace_is_not_interrupted() -> None:
    with shutdown(grace=PATIENCE) as stopping:
        send()
        stopping.wait(PATIENCE)

    with pytest.raises(KeyError), shutdown(grace=0) as stopping:
        raise KeyError
    assert not stopping.is_set()


def test_who_waits_for_a_lease_can_be_stopped_too() -> None:
    with hold_elsewhere("crane:1"), shutdown() as stopping:
        threading.Timer(0.05, send).start()
        with pytest.raises(LeaseTimeout):
            Lease.objects.hold("crane:1", wait=None, stopping=stopping).__enter__()


def test_coroutines_leave_their_blocks() -> None:
    async def work() -> None:
        async with Lease.objects.hold("crane:1"):
            send()
            await asyncio.sleep(PATIENCE)

    with in_memory() as memory:
        with pytest.raises(SystemExit), shutdown(grace=0):
            asyncio.run(work())
        assert [event.kind for event in memory.events] == ["acquired", "released"]


def test_in_another_thread_nothing_is_asked() -> None:
    seen: list[bool] = []

    def run() -> None:
        with shutdown(grace=0) as stopping:
            seen.append(stopping.is_set())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False]
