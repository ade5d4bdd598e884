"""Unique keys: how long they last, and what an enqueue does that meets one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import pre_save
from django.test.utils import CaptureQueriesContext

from leasing.functions import after
from leasing.stores.rows import pause_shortly
from tasks.exceptions import GiveUp, KeyBusy
from tasks.models import Task, TaskStep
from tasks.querysets import duplicates
from tasks.querysets.sql import insert
from tests.factories import make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, just_before_the_update
from tests.tasks.support import Reported, grant_to, lose, row_of

pytestmark = pytest.mark.django_db

#: Has an enqueue call something where it would pause to wait for a key.
Pausing = Callable[[Callable[[], object]], None]

HOUR = timedelta(hours=1)
ECHO = "jobs.echo"


@pytest.fixture
def pausing(monkeypatch: pytest.MonkeyPatch) -> Pausing:
    """Has an enqueue that waits for a key call something, in place of its pause."""
    return lambda call: monkeypatch.setattr(duplicates, "pause_shortly", call)


def again(**options: Any) -> Task:
    return Task.objects.enqueue(ECHO, {"n": 2}, unique_key="k", **options)


def has_key(task: Task) -> bool:
    return bool(row_of(task)["unique_key"] == "k")


@pytest.mark.usefixtures("on_postgresql")
def test_a_new_key_is_looked_for_once_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain INSERT would wait for who writes to the task that has the key."""
    make_task(unique_key="other")
    monkeypatch.setattr(insert, "serves", lambda model, connection: False)

    with CaptureQueriesContext(connection) as queries:
        Task.objects.enqueue(ECHO, unique_key="k")

    looks = [each["sql"] for each in queries if each["sql"].startswith("SELECT 1")]
    assert len(looks) == 1
    assert Task.objects.count() == 2


# Lifetimes

ENDS: dict[str, Callable[[Task], object]] = {
    "claim": lambda task: None,
    "complete": lambda task: Task.objects.complete(task),
    "fail": lambda task: Task.objects.fail(task, "no luck"),
    "give up": lambda task: Task.objects.fail(task, GiveUp("no hope")),
    "give back": lambda task: Task.objects.give_back(task, "stopped"),
    "recover": lose,
    "revoke": lambda task: Task.objects.revoke(),
}
#: What keeps the key. Recovery and revocation end an attempt as a failure does.
KEEPS: dict[Any, set[str]] = {
    "waiting": set(),
    "running": {"claim", "give back"},
    "finished": {"claim", "give back", "fail", "recover", "revoke"},
    HOUR: set(ENDS),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("unique_for", KEEPS, ids=str)
def test_a_key_lasts_as_long_as_was_asked(unique_for: Any, end: str) -> None:
    stored = make_task(unique_key="k", unique_for=unique_for)
    assert again().pk == stored.pk

    (task,) = Task.objects.claim("ann")
    ENDS[end](task)

    assert has_key(task) == (end in KEEPS[unique_for])
    assert (again().pk == task.pk) == (end in KEEPS[unique_for])


@pytest.mark.parametrize("end", ["recover", "revoke"])
@pytest.mark.parametrize(("unique_for", "keeps"), [("finished", False), (HOUR, True)])
def test_the_last_attempt_ends_the_key_too(unique_for: Any, keeps: bool, end: str) -> None:
    task = make_task(unique_key="k", unique_for=unique_for, max_attempts=1, state="running")

    ENDS[end](task)

    assert row_of(task)["status"] == "failed"
    assert has_key(task) == keeps


@pytest.mark.parametrize("state", ["ready", "running", "succeeded", "retrying"])
def test_after_its_window_the_next_enqueue_takes_the_key_over(
    state: str, database_clock: DatabaseClock
) -> None:
    task = make_task(unique_key="k", unique_for=HOUR, state=state, ttl=80_000)
    assert row_of(task)["unique_until"] == database_clock.now + HOUR

    database_clock.advance(HOUR.total_seconds() - 0.000001)
    assert again().pk == task.pk

    database_clock.advance(0.000001)
    other = again(unique_for=60.5)
    assert other.pk != task.pk and not other.is_duplicate
    assert other.unique_until == database_clock.now + timedelta(seconds=60.5)
    assert has_key(other) and not has_key(task)
    assert again().pk == other.pk


def test_a_window_that_is_over_is_not_kept_by_an_end(database_clock: DatabaseClock) -> None:
    task = make_task(unique_key="k", unique_for=HOUR, state="running", ttl=80_000)
    database_clock.advance(3600)

    Task.objects.complete(task)

    assert not has_key(task)


def test_no_other_key_is_freed_with_one_that_is_overdue(database_clock: DatabaseClock) -> None:
    """Neither another's of the same age, nor one whose time is no window."""
    mine = make_task(unique_key="k", unique_for=1)
    other = make_task(unique_key="other", unique_for=1)
    database_clock.advance(2)

    again()

    assert row_of(other)["unique_key"] == "other"
    assert row_of(mine)["unique_key"] is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_of_two_that_take_over_at_once_one_does(
    other_session: OtherSession, pausing: Pausing
) -> None:
    old = make_task(unique_key="k", unique_for=HOUR, state="succeeded")
    Task.objects.filter(pk=old.pk).update(unique_until=after(timedelta(seconds=-1)))
    waits = threading.Event()

    def pause() -> None:
        waits.set()
        pause_shortly()

    pausing(pause)

    with transaction.atomic():
        mine = again()
        theirs = other_session.start(again)
        assert waits.wait(20)  # it has met the old task, whose row is locked here

    assert theirs.result(20).pk == mine.pk
    assert Task.objects.count() == 2


# Modes


@pytest.mark.parametrize("keys", [{}, {"idempotency_key": "i"}], ids=["one key", "both"])
def test_a_new_key_costs_an_insert_and_no_look(
    keys: dict[str, Any], django_assert_num_queries: Any
) -> None:
    # PostgreSQL needs no SAVEPOINT, since nothing is refused.
    with django_assert_num_queries(1 if connection.vendor == "postgresql" else 3):
        task = again(unique_for=HOUR, **keys)

    assert row_of(task) == {**row_of(task), "unique_key": "k", "task_data": {"n": 2}, **keys}
    assert task.unique_until == row_of(task)["unique_until"]


@pytest.mark.usefixtures("on_postgresql")
def test_a_duplicate_costs_an_insert_of_nothing_a_look_and_a_count(
    django_assert_num_queries: Any,
) -> None:
    make_task(unique_key="k")

    with django_assert_num_queries(6):  # INSERT, SELECT; SAVEPOINT, SELECT, UPDATE, RELEASE
        again()


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("mode", ["replace", "keep_time"])
def test_a_waiting_task_becomes_what_was_asked_for_last(
    mode: str, reported: Reported, database_clock: DatabaseClock
) -> None:
    later = database_clock.now + HOUR
    other = make_task(unique_key="another")
    task = make_task(unique_key="k", unique_for=7200, scheduled_at=later)
    before, bystander = row_of(task), row_of(other)
    reported.clear()

    present = again(
        on_duplicate=mode,
        queue="mail",
        priority=9,
        delay=60,
        max_attempts=3,
        timeout=5,
        progress_timeout=timedelta(seconds=6),
        concurrency_key="c",
        concurrency_limit=2,
    )

    moved = {"scheduled_at": database_clock.now + timedelta(seconds=60)}
    assert row_of(task) == before | {
        "name": ECHO,
        "task_data": {"n": 2},
        "queue": "mail",
        "priority": 9,
        "max_attempts": 3,
        "timeout": timedelta(seconds=5),
        "progress_timeout": timedelta(seconds=6),
        "concurrency_key": "c",
        "concurrency_limit": 2,
    } | (moved if mode == "replace" else {})
    assert present.pk == task.pk and present.is_duplicate
    assert row_of(present) == {column: getattr(present, column) for column in row_of(present)}
    assert row_of(other) == bystander
    assert reported == [("replaced", task.pk, {})]


def test_a_replacement_without_a_time_is_due_now(database_clock: DatabaseClock) -> None:
    make_task(unique_key="k", state="scheduled")

    assert again(on_duplicate="replace").scheduled_at == database_clock.now


@pytest.mark.parametrize(("state", "attempts"), [("retrying", 1), ("returned", 0)])
def test_a_task_that_began_and_is_replaced_forgets_what_it_had_done(
    state: str, attempts: int
) -> None:
    task = make_task(unique_key="k", state=state, max_attempts=5)
    other = make_task(state="running")
    Task.objects.filter(pk=task.pk).update(checkpoint={"at": 3}, checkpoints=1, progress={"n": 1})
    for each in (task, other):
        TaskStep.objects.create(task=each, name="charge")

    present = again(on_duplicate="replace", max_attempts=1)

    assert (present.attempts, present.max_attempts) == (attempts, attempts + 1)
    assert (present.checkpoint, present.checkpoints, present.progress) == (None, 1, None)
    assert [step.task_id for step in TaskStep.objects.all()] == [other.pk]


@pytest.mark.parametrize("mode", ["replace", "keep_time"])
@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_what_does_not_wait_is_left_alone_and_counts_a_duplicate(
    state: str, mode: str, reported: Reported
) -> None:
    task = make_task(unique_key="k", unique_for=HOUR, state=state)
    before = row_of(task)
    reported.clear()

    assert again(on_duplicate=mode).pk == task.pk

    assert row_of(task) == before | {"duplicates": 1}
    assert reported == [("duplicate", task.pk, {})]


def test_a_task_that_is_claimed_before_it_can_be_replaced_is_left_alone() -> None:
    """As on a database without row locks: it waited when it was looked at."""
    task = make_task(unique_key="k")

    with just_before_the_update(lambda: grant_to(task, "bob")):
        present = again(on_duplicate="replace")

    assert present.pk == task.pk
    assert (row_of(task)["holder"], row_of(task)["task_data"]) == ("bob", task.task_data)
    assert row_of(task)["duplicates"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"unique_for": "for ever"},
        {"unique_for": "window"},
        {"unique_for": 0},
        {"unique_for": -1},
        {"unique_for": True},
        {"unique_for": None},
        {"on_duplicate": "merge"},
        {"on_duplicate": "replace", "idempotency_key": "i"},
        {"on_duplicate": "replace", "unique_key": None},
        {"unique_for": "waiting", "unique_key": None},
        {"unique_for": 5, "unique_key": None},
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Task.objects.enqueue(ECHO, **{"unique_key": "k", **options})

    assert not Task.objects.exists()


# Whose row is locked

#: How somebody keeps the row of a task that has the key.
LOCKS: dict[str, Callable[[Task], object]] = {
    # As ``still_mine`` does.
    "proves": lambda task: Task.objects.prove(task),
    "writes": lambda task: Task.objects.checkpoint(task, {"page": 3}),
}


def keep_locked(session: OtherSession, task: Task) -> None:
    """Keep the row locked in ``session`` until it commits."""
    session.begin()
    session.run(lambda: Task.objects.select_for_update().get(pk=task.pk))


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_duplicate_does_not_wait_for_a_handler_that_has_its_row_locked(
    lock: str, mode: str, other_session: OtherSession, reported: Reported
) -> None:
    task = make_task(unique_key="k", state="running")

    with transaction.atomic():
        LOCKS[lock](task)
        present = other_session.run(partial(again, on_duplicate=mode))

    assert present.pk == task.pk and present.is_duplicate
    assert row_of(task)["duplicates"] == 0  # who could not count it told of it all the same
    assert reported[-1] == ("duplicate", task.pk, {})
    again()
    assert row_of(task)["duplicates"] == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("key", ["unique_key", "idempotency_key"])
def test_a_duplicate_does_not_wait_either_where_each_instance_that_is_saved_is_told(
    key: str, other_session: OtherSession, request: pytest.FixtureRequest
) -> None:
    keys: dict[str, Any] = {key: "k"}
    task = make_task(name=ECHO, data={"n": 2}, state="running", **keys)

    def hear(**said: object) -> None:
        """Be there: then Django's own save stores the tasks."""

    pre_save.connect(hear, sender=Task)
    request.addfinalizer(lambda: pre_save.disconnect(hear, sender=Task))

    with transaction.atomic():
        Task.objects.checkpoint(task, {"page": 3})
        present = other_session.run(partial(Task.objects.enqueue, ECHO, {"n": 2}, **keys))

    assert present.pk == task.pk


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_duplicate_is_counted_once_a_lock_that_is_soon_over_is(
    other_session: OtherSession, pausing: Pausing
) -> None:
    task = make_task(unique_key="k")
    pausing(other_session.commit)
    keep_locked(other_session, task)

    again()

    assert row_of(task)["duplicates"] == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_duplicate_by_its_idempotency_key_waits_for_nobody(other_session: OtherSession) -> None:
    task = make_task(name=ECHO, data={"n": 2}, idempotency_key="i", state="running")

    with transaction.atomic():
        Task.objects.checkpoint(task, {"page": 3})
        enqueue = partial(Task.objects.enqueue, ECHO, {"n": 2}, idempotency_key="i")
        assert other_session.run(enqueue).pk == task.pk


#: What an enqueue wants of the row of the task that has the key.
WANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "to replace it": ({}, {"on_duplicate": "replace"}),
    "the key, which is overdue": ({"unique_for": 1}, {}),
}


def with_key(**terms: Any) -> Task:
    """A task that has the key, which is overdue if it has it for a time."""
    task = make_task(unique_key="k", **terms)
    if terms:
        Task.objects.filter(pk=task.pk).update(unique_until=after(timedelta(seconds=-1)))
    return task


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("wants", WANTS)
def test_an_enqueue_that_cannot_do_without_a_locked_row_says_so(
    wants: str, other_session: OtherSession, pausing: Pausing
) -> None:
    pausing(lambda: None)
    first, second = WANTS[wants]
    task = with_key(**first)
    before = row_of(task)
    keep_locked(other_session, task)

    with pytest.raises(KeyBusy, match="'k'"):
        again(**second)

    assert list(Task.objects.values()) == [before]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("wants", WANTS)
def test_an_enqueue_waits_a_little_for_the_row_that_it_needs(
    wants: str, other_session: OtherSession, pausing: Pausing
) -> None:
    first, second = WANTS[wants]
    task = with_key(**first)
    pausing(other_session.commit)
    keep_locked(other_session, task)

    stored = again(**second)

    assert stored.task_data == {"n": 2}
    assert (has_key(stored), stored.is_duplicate) == (True, bool(second))


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_task_that_ends_while_an_enqueue_waits_to_replace_it_is_left_alone(
    other_session: OtherSession, pausing: Pausing
) -> None:
    task = make_task(unique_key="k", unique_for=HOUR)
    other_session.begin()
    other_session.run(lambda: Task.objects.filter(pk=task.pk).cancel())
    pausing(other_session.commit)

    assert again(on_duplicate="replace").pk == task.pk

    assert row_of(task)["status"] == "cancelled"
    assert row_of(task)["task_data"] == task.task_data
