"""The health that a worker tells of itself, and the end of one that has grown too large."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from django.db import OperationalError
from django.db.migrations.recorder import MigrationRecorder

from leasing.runtime import services
from leasing.runtime.services import Service
from tasks.log import log
from tasks.models import TaskStatus
from tasks.runtime.health import LATE_AFTER, Health
from tasks.runtime.memory import resident_mib
from tasks.worker import health as judging
from tasks.worker import process
from tasks.worker.health import WorkerHealth
from tests.factories import make_task
from tests.leasing.support import FakeClock
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.support import Handlers
from tests.tasks.workers import patient, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]

#: Longer than any answer is waited for.
LONG = 61.0


class Parts:
    """The state by which the health is judged, as the test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
        self.clock = clock
        for module in (judging, services):
            monkeypatch.setattr(module, "system_clock", clock)
        self.keeper = SimpleNamespace(draining=False)
        monkeypatch.setattr(judging, "keeper", self.keeper)
        self.completer = Mock(waits_since=None, database_down=False)
        self.stopping = threading.Event()
        self.is_ending = False
        #: Called by every tick.
        self.meanwhile: Callable[[], object] = bool
        self.claiming, self.heartbeats = self.service(), self.service()
        self.judge = WorkerHealth(
            self.claiming, self.completer, self.stopping, lambda: self.is_ending
        )
        self.judge.lasting["heartbeats"] = self.heartbeats

    def service(self) -> Service:
        def tick() -> float:
            self.meanwhile()
            return 1.0

        return Service(tick, log.worker_claim_failed)

    def start(self) -> None:
        self.heartbeats.step()
        self.judge.migrations.step()
        self.claiming.step()

    @property
    def health(self) -> Health:
        return self.judge.read()

    def fail(self) -> None:
        raise OperationalError("away")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, holder_clock: FakeClock) -> Parts:
    return Parts(monkeypatch, holder_clock)


def test_a_worker_is_ready_once_it_has_claimed_and_all_migrations_are_applied(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, unknown = parts.health.closed
    assert starts.startswith("Starting") and unknown.startswith("Migrations have not been checked")
    assert parts.health.is_moving

    parts.start()
    assert parts.health == Health()

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", lambda recorder: {})
    assert parts.judge.migrations.step() < 60
    (reason,) = parts.health.closed
    assert "migrate" in reason

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", lambda recorder: parts.fail())
    parts.judge.migrations.step()
    assert parts.health.closed == (reason,)  # what a database that is away said before


def test_a_main_thread_that_claims_for_longer_than_any_answer_takes_hangs(parts: Parts) -> None:
    parts.start()
    seen: list[Health] = []

    def look() -> None:
        for seconds in (LATE_AFTER, 1.0, LONG - LATE_AFTER - 2.0, 1.5):
            parts.clock.advance(seconds)
            parts.heartbeats.began_at = parts.clock()
            seen.append(parts.health)

    parts.meanwhile = look
    parts.claiming.step()

    assert [(bool(each.hung), bool(each.stalled)) for each in seen] == [
        (False, False),
        (False, True),
        (False, True),
        (True, True),
    ]
    parts.clock.advance(LONG)
    parts.heartbeats.began_at = parts.clock()
    assert parts.health == Health()  # it waits for tasks now


def test_a_thread_that_ticks_no_more_hangs(parts: Parts) -> None:
    parts.start()
    parts.clock.advance(LONG - 2)
    assert not parts.health.hung

    parts.clock.advance(3)
    assert parts.health.hung == ("No sign of life from the thread for heartbeats for 62 s.",)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("claiming", "Claims are failing."),
        ("heartbeats", "Heartbeats are failing."),
        ("keeper", "Renewals are failing or late."),
        ("database", "Results cannot be stored."),
        ("results", "Results cannot be stored."),
    ],
)
def test_what_has_no_answer_stalls_the_worker_and_ends_nobodys_life(
    what: str, reason: str, parts: Parts
) -> None:
    parts.start()
    if what in ("claiming", "heartbeats"):
        parts.meanwhile = parts.fail
        getattr(parts, what).step()
    parts.keeper.draining = what == "keeper"
    parts.completer.database_down = what == "database"
    parts.completer.waits_since = parts.clock()
    parts.clock.advance(LATE_AFTER + (what == "results"))

    assert parts.health == Health(stalled=(reason,))
    assert not parts.health.is_moving


def test_a_worker_that_stops_or_ends_takes_no_more_though_its_work_moves(parts: Parts) -> None:
    parts.start()
    parts.is_ending = True
    assert parts.health == Health(closed=("Finishing its last tasks before it exits.",))

    parts.stopping.set()
    assert parts.health == Health(closed=("Shutting down.",))
    assert parts.health.is_moving


def test_a_worker_at_work_is_ready_and_one_whose_claims_fail_is_not(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working() as worker:
        worker.health.migrations.step()
        wait_for(lambda: worker.health.read() == Health())
        assert set(worker.health.lasting) == {"heartbeats", "other threads"}
        wait_for(lambda: all(each.began_at for each in worker.health.lasting.values()))
        with monkeypatch.context() as patch:
            patch.setattr(worker, "_claim", lambda: Parts.fail(worker))  # type: ignore[arg-type]
            worker.poller.wake()  # an idle worker that hears notifications claims nothing
            wait_for(lambda: worker.health.read().stalled == ("Claims are failing.",))
        wait_for(lambda: worker.health.read() == Health())
    assert worker.health.read().closed == ("Shutting down.",)


def test_a_worker_that_has_grown_too_large_ends_with_the_tasks_that_it_has(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size, go_on = [100], threading.Event()
    monkeypatch.setattr(process, "resident_mib", lambda: size[0])
    handlers["jobs.slow"] = lambda ctx: go_on.wait(20)
    first = make_task(name="jobs.slow", data={})
    with working(max_memory=100, timing=patient(tend_every=0.02)) as worker:
        wait_for(lambda: worker.attempts)
        size[0] = 101
        wait_for(lambda: worker.health.read().closed[0].startswith("Finishing"))
        later = make_task(name="jobs.slow", data={})
        go_on.set()
        wait_for(worker.ended.is_set)
        assert not worker.stopping.is_set()

    first.refresh_from_db()
    later.refresh_from_db()
    assert (first.status, later.status) == (TaskStatus.SUCCEEDED, TaskStatus.READY)
    assert logged(caplog, limit=100, mib=101) == ["worker.too_large"]


def test_the_memory_of_this_process_is_known() -> None:
    before = resident_mib()
    held = bytearray(64 << 20)

    assert before > 10
    assert before + 50 < resident_mib() < before + 100
    del held
