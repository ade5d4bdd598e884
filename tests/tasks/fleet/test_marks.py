"""The map that a worker shares with its parent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from leasing.runtime.events import Subscriber, subscribe, unsubscribe
from tasks.execution import runner
from tasks.execution.attempt import Attempt
from tasks.execution.completer import store_outcomes
from tasks.execution.context import Context
from tasks.models import Task, TaskStatus
from tasks.runtime.marks import UNSTORED, Marks, size_of
from tasks.worker.hand_back import give_back
from tests.factories import make_task
from tests.leasing.support import FakeClock, stopped_clock
from tests.processes import wait_for
from tests.tasks.support import Handlers, end_by_another, is_storing, refusing
from tests.tasks.workers import PATIENCE, ended, states, working

ONE_MORE = str(uuid.uuid4())


@pytest.fixture
def known(use_marks: Callable[[Marks | None], None]) -> Iterator[Marks]:
    """The marks of this process."""
    known = Marks(100, 2)
    use_marks(known)
    yield known
    use_marks(None)
    known.close()


def fill(known: Marks, count: int) -> None:
    for _ in range(count):
        known.begin(str(uuid.uuid4()))


def test_a_mark_is_there_until_it_is_cleared() -> None:
    known = Marks(3, 1)
    first, second = uuid.uuid4(), uuid.uuid4()

    known.begin(str(first))
    known.begin(str(second))
    assert known.begun() == {first, second}

    known.clear([str(first), str(uuid.uuid4())])
    assert known.begun() == {second}


def test_what_was_being_marked_when_the_worker_was_killed_matches_no_grant() -> None:
    known = Marks(1, 0)
    whole = uuid.uuid4()
    known.begin(str(whole)[:20].ljust(36, "\0"))
    known.begin(str(whole))

    assert known.begun() == {whole}


def test_a_map_that_has_no_place_for_all_that_may_be_in_the_worker_is_full() -> None:
    known = Marks(3, 1)
    fill(known, UNSTORED)
    assert not known.are_full

    known.begin(ONE_MORE)
    assert known.are_full

    known.clear([ONE_MORE])
    assert not known.are_full
    fill(known, 3)
    with pytest.raises(IndexError):
        fill(known, 1)


def test_a_mark_that_is_kept_is_cleared_when_its_time_is_over(
    holder_clock: FakeClock,
) -> None:
    known = Marks(3, 1)
    known.begin(str(grant := uuid.uuid4()))
    known.keep(str(grant), 60)
    known.clear([str(grant)])  # it is not stored, whatever somebody else says

    holder_clock.now += 59
    assert not known.are_full
    assert known.begun() == {grant}
    holder_clock.now += 1
    assert not known.are_full
    assert known.begun() == set()


def test_process_groups_are_noted_and_forgotten() -> None:
    known = Marks(3, 2)

    known.add_group(17)
    known.add_group(18)
    known.remove_group(17)
    known.add_group(19)

    assert sorted(known.noted_groups()) == [18, 19]
    assert known.begun() == set()


def test_who_maps_the_same_file_sees_the_same_marks(tmp_path: Path) -> None:
    with (tmp_path / "map").open("w+b") as file:
        file.truncate(size_of(5, 1))
        ours, theirs = (Marks(5, 1, file.fileno()) for _ in range(2))

    theirs.begin(str(grant := uuid.uuid4()))
    theirs.add_group(17)

    assert (ours.begun(), ours.noted_groups()) == ({grant}, [17])


# Attempts


def complete(ctx: Context) -> None:
    with ctx.completing({"ok": True}):
        pass


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "end",
    [lambda ctx: None, lambda ctx: end_by_another(ctx.task), complete],
    ids=["ended", "ended by another", "completed by its handler"],
)
def test_a_handler_is_marked_while_it_runs_and_until_its_outcome_is_stored(
    end: Callable[[Context], object],
    known: Marks,
    attempt_of: Callable[[Task], Attempt],
    handlers: Handlers,
) -> None:
    task = make_task(name="jobs.echo", state="running")
    seen: list[set[uuid.UUID]] = []

    def handler(ctx: Context, **data: Any) -> None:
        seen.append(known.begun())
        end(ctx)

    handlers["jobs.echo"] = handler
    outcome = runner.work(attempt_of(task))
    assert seen == [{task.grant_id}]
    assert known.begun() == (set() if end is complete else {task.grant_id})

    store_outcomes([outcome])
    assert known.begun() == set()


@pytest.mark.django_db(transaction=True)
def test_a_task_without_a_handler_here_is_not_marked(
    known: Marks, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    task = make_task(name="jobs.echo", state="running")
    del handlers["jobs.echo"]
    attempt = attempt_of(task)

    runner.work(attempt)

    assert known.begun() == set()


@pytest.mark.django_db(transaction=True)
def test_what_could_not_be_stored_stays_marked_for_as_long_as_its_lease(
    known: Marks, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    task = make_task(name="jobs.echo", state="running")
    handlers["jobs.echo"] = lambda ctx, **data: None

    with refusing(OperationalError("away"), lambda sql, params: is_storing(sql)):
        store_outcomes([runner.work(attempt_of(task))], pauses=())
    assert not known.are_full
    assert known.begun() == {task.grant_id}

    with stopped_clock() as clock:
        clock.advance(2 * task.ttl.total_seconds())
        assert not known.are_full
        assert known.begun() == set()


@pytest.mark.django_db(transaction=True)
def test_what_was_lost_stays_marked_until_its_lease_has_run_out_everywhere(
    known: Marks, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    """The holder stops believing before the database does."""
    task = make_task(name="jobs.echo", state="running")

    def lose(ctx: Context, **data: Any) -> None:
        attempts[0].mark_lost("so")
        ctx.ensure()

    handlers["jobs.echo"] = lose
    attempts = [attempt_of(task)]
    store_outcomes([runner.work(attempts[0])])

    assert known.begun() == {task.grant_id}


@pytest.mark.django_db(transaction=True)
def test_what_is_given_back_is_not_marked_any_more(
    known: Marks, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    attempt = attempt_of(make_task(state="running"))
    attempt.carrier = threading.current_thread()
    attempt.set_mark()

    give_back([attempt], "so")

    assert known.begun() == set()


@pytest.mark.django_db(transaction=True)
def test_an_attempt_that_timed_out_is_cleared_once_by_whoever_stores_it(
    known: Marks, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    task = make_task(name="jobs.echo", state="running")
    attempts: list[Attempt] = []
    handlers["jobs.echo"] = lambda ctx, **data: runner.time_out(attempts[0])
    attempts.append(attempt_of(task))

    store_outcomes([runner.work(attempts[0])])

    assert known.begun() == set()
    fill(known, 100 + UNSTORED)  # each place is free, and once
    assert len(known.begun()) == 100 + UNSTORED


@pytest.mark.django_db(transaction=True)
def test_an_attempt_that_timed_out_before_its_handler_was_called_leaves_no_mark(
    known: Marks, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    task = make_task(name="jobs.echo", state="running")
    called: list[object] = []
    handlers["jobs.echo"] = lambda ctx, **data: called.append(ctx)
    attempt = attempt_of(task)
    heard: dict[str, Subscriber] = {"attempt.begun": lambda attempts: runner.time_out(attempt)}
    subscribe(heard, None)
    try:
        store_outcomes([runner.work(attempt)])
    finally:
        unsubscribe(heard)

    assert (called, known.begun()) == ([], set())


# Workers


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick")
def test_handlers_of_every_kind_are_marked(
    known: Marks, handlers: Handlers, tmp_path: Path
) -> None:
    seen: dict[str, set[uuid.UUID]] = {}

    async def asked(ctx: Context) -> None:
        seen["coroutine"] = known.begun()

    def asks(ctx: Context) -> None:
        seen["thread"] = known.begun()

    handlers["jobs.thread"], handlers["jobs.coroutine"] = asks, asked
    names = ("jobs.thread", "jobs.coroutine")
    tasks = {name: make_task(name=name, data={}) for name in names}
    process = Task.objects.enqueue("jobs.compute", {"do": "ignore", "folder": str(tmp_path)})
    with working(stop_timeout=0):
        wait_for(lambda: len(seen) == 2)
        wait_for((tmp_path / "began").exists, timeout=PATIENCE)
        process.refresh_from_db()
        assert process.grant_id in known.begun()
        assert known.noted_groups() == [int((tmp_path / "began").read_text())]

    for name, task in tasks.items():
        task.refresh_from_db()
        assert task.grant_id in seen[name.removeprefix("jobs.")]
    assert (known.begun(), known.noted_groups()) == (set(), [])
    assert states() == ["succeeded", "succeeded", "ready"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick")
def test_a_worker_whose_map_is_full_claims_nothing(known: Marks, handlers: Handlers) -> None:
    task = make_task(name="jobs.echo", data={})
    fill(known, UNSTORED)
    known.begin(ONE_MORE)
    with working() as worker:
        wait_for(lambda: worker._is_blocked)
        task.refresh_from_db()
        assert task.status == TaskStatus.READY
        known.clear([ONE_MORE])
        wait_for(lambda: states() == ["succeeded"])
        assert not ended(worker)()
