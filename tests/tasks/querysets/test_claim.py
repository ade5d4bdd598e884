"""Claiming tasks."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from leasing.db.dialects import limit_waiting, lock, lock_names
from leasing.exceptions import InvalidResource, InvalidTTL, LeaseInTransaction
from leasing.functions import EPOCH, after
from leasing.runtime.clock import clock
from tasks.exceptions import ClaimAnswered, ClaimUnderWay, UnknownQueue
from tasks.models import ClaimKey, Task, TaskStatus
from tasks.querysets import recovery
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import (
    OtherSession,
    after_a_query_before,
    just_before_the_update,
    under_repeatable_read,
)
from tests.tasks.support import Reported, grant_to, make_due, row_of, take_over

pytestmark = pytest.mark.django_db


def claim_all(**options: Any) -> list[int]:
    return [task.pk for task in Task.objects.claim("ann", limit=100, **options)]


def test_a_claimed_task_is_leased_to_its_holder(database_clock: DatabaseClock) -> None:
    ready = make_task()

    (task,) = Task.objects.claim("ann", ttl=7)

    assert task.pk == ready.pk
    assert (task.status, task.holder, task.attempts) == (TaskStatus.RUNNING, "ann", 1)
    assert isinstance(task.grant_id, uuid.UUID)
    assert (task.grants, task.renewals, task.released_at) == (1, 0, None)
    assert task.acquired_at == task.started_at == database_clock.now
    assert task.expires_at == database_clock.now + timedelta(seconds=7)
    assert task.ttl == timedelta(seconds=7)
    assert list(Task.objects.running()) == [task]


def test_what_claim_returns_is_what_the_database_has() -> None:
    make_task()

    (task,) = Task.objects.claim("ann")

    assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}


def test_the_setting_decides_how_long_a_claim_lasts(settings: Settings) -> None:
    settings.LEASING = {"TTL": 12}
    make_task()

    (task,) = Task.objects.claim("ann")

    assert task.ttl == timedelta(seconds=12)


def test_with_nothing_ready_nothing_is_claimed(reported: Reported) -> None:
    for state in ("scheduled", "running", "stuck", "succeeded", "failed", "cancelled"):
        make_task(state=state)
    before = list(Task.objects.order_by("pk").values())
    reported.clear()

    assert claim_all() == []

    assert list(Task.objects.order_by("pk").values()) == before
    assert reported == []


def test_higher_priority_goes_first_then_the_longest_due_then_the_first_stored(
    database_clock: DatabaseClock,
) -> None:
    def enqueue(priority: int, seconds_ago: int) -> int:
        moment = database_clock.now - timedelta(seconds=seconds_ago)
        task = make_task(priority=priority, scheduled_at=moment)
        return task.pk

    last = enqueue(-1, 100)
    third, fourth = enqueue(0, 50), enqueue(0, 50)
    second = enqueue(0, 60)
    first = enqueue(1, 0)

    assert claim_all() == [first, second, third, fourth, last]


def test_a_task_is_not_claimed_before_its_time(database_clock: DatabaseClock) -> None:
    task = make_task(scheduled_at=database_clock.now + timedelta(seconds=5), priority=9)

    database_clock.advance(5 - 0.000001)
    assert claim_all() == []

    database_clock.advance(0.000001)
    assert claim_all() == [task.pk]


@pytest.mark.parametrize(("limit", "claimed"), [(1, 1), (2, 2), (9, 3), (0, 0)])
def test_no_more_are_claimed_than_asked_for(limit: int, claimed: int) -> None:
    tasks = make_tasks(3)

    assert [task.pk for task in Task.objects.claim("ann", limit=limit)] == [
        task.pk for task in tasks[:claimed]
    ]
    assert Task.objects.running().count() == claimed


def test_tokens_rise_from_claim_to_claim() -> None:
    task = make_task(state="running")
    tokens = [task.fencing_token]
    for _ in range(3):
        Task.objects.give_back(task, "again")
        (task,) = Task.objects.claim("bob")
        tokens.append(task.fencing_token)

    assert tokens == sorted(set(tokens))


def test_an_attempt_is_counted_at_each_claim_and_the_start_is_the_first() -> None:
    first = make_task(state="running")
    Task.objects.fail(first, "no luck")
    make_due(first)

    (second,) = Task.objects.claim("bob")

    assert (second.attempts, second.grants) == (2, 2)
    assert second.started_at == first.started_at
    assert second.acquired_at is not None
    assert second.holder == "bob"


def test_what_was_renewed_and_released_begins_anew() -> None:
    task = make_task(state="running")
    Task.objects.heartbeat(task)
    Task.objects.give_back(task, "again")

    (task,) = Task.objects.claim("bob")

    assert (task.renewals, task.renewed_at, task.released_at) == (0, None, None)


# Queues


@pytest.mark.usefixtures("queues")
def test_a_limit_counts_over_all_queues() -> None:
    for queue in ("default", "mail", "reports"):
        make_tasks(2, queue=queue)

    assert len(Task.objects.claim("ann", limit=3)) == 3
    assert Task.objects.running().count() == 3


def test_a_queue_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownQueue, match="nowhere"):
        Task.objects.claim("ann", queues=["default", "nowhere"])


@pytest.mark.usefixtures("queues")
def test_a_full_queue_does_not_starve_the_others() -> None:
    """The queue that is looked at first is drawn by lot: that one loses 50 times running has a
    chance of less than one in a million million."""
    for queue in ("mail", "reports"):
        make_tasks(50, queue=queue, priority=int(queue == "mail"))

    served = Counter(
        task.queue
        for _ in range(50)
        for task in Task.objects.claim("ann", queues=["mail", "reports"])
    )

    assert served["mail"] + served["reports"] == 50
    assert min(served["mail"], served["reports"]) > 0


@pytest.mark.usefixtures("queues")
def test_the_callers_list_of_queues_is_left_as_it_was() -> None:
    queues = ["mail", "reports", "default"]

    for _ in range(10):
        Task.objects.claim("ann", queues=queues)

    assert queues == ["mail", "reports", "default"]


# Arguments


@pytest.mark.parametrize("holder", ["", "x" * 201, "a\nb", " ann", None, 7])
def test_a_holder_without_a_proper_name_is_refused(holder: Any) -> None:
    with pytest.raises(InvalidResource, match="holder"):
        Task.objects.claim(holder)


@pytest.mark.parametrize("ttl", [0, 0.99, 86_401, float("nan"), "30", True])
def test_a_ttl_out_of_bounds_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidTTL):
        Task.objects.claim("ann", ttl=ttl)


def test_a_claim_inside_a_transaction_is_refused() -> None:
    before = row_of(make_task())

    with pytest.raises(LeaseInTransaction), transaction.atomic():
        Task.objects.claim("ann")

    assert Task.objects.values().get() == before


# Who else claims


def test_what_someone_else_got_first_is_not_claimed() -> None:
    """As on a database without row locks: both have read the row, the other was faster."""
    mine, theirs = make_task(), make_task()

    with just_before_the_update(lambda: grant_to(theirs, "bob")):
        assert claim_all() == [mine.pk]

    assert (row_of(theirs)["holder"], row_of(theirs)["attempts"]) == ("bob", 1)


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_rows_that_someone_has_locked_are_passed_over(other_session: OtherSession) -> None:
    locked, free = make_task(priority=9), make_task()
    other_session.begin()
    other_session.run(lambda: Task.objects.select_for_update().get(pk=locked.pk))

    assert claim_all() == [free.pk]

    other_session.commit()
    assert claim_all() == [locked.pk]


def test_claiming_many_costs_as_many_statements_as_claiming_one(
    django_assert_num_queries: Any,
) -> None:
    make_tasks(21)
    # Else SAVEPOINT, SELECT of what comes first, SELECT, UPDATE, SELECT, RELEASE
    count = 1 if connection.vendor == "postgresql" else 6
    with django_assert_num_queries(count):
        Task.objects.claim("ann")

    with django_assert_num_queries(count):
        Task.objects.claim("ann", limit=20)


@pytest.mark.usefixtures("on_postgresql", "queues")
def test_an_idle_look_at_many_queues_is_one_query(django_assert_num_queries: Any) -> None:
    make_task(state="scheduled")
    with django_assert_num_queries(1):
        assert Task.objects.take("ann", limit=20) == []


# Recovery on the way


@pytest.fixture
def last_swept() -> Any:
    """Set how many seconds ago this process swept."""

    def set_to(seconds_ago: float | None) -> None:
        recovery.swept_at.clear()
        if seconds_ago is not None:
            recovery.swept_at[connection.alias] = clock() - seconds_ago

    return set_to


@pytest.mark.parametrize("seconds_ago", [None, 5.1])
def test_stuck_tasks_are_recovered_first_when_none_has_looked_for_them_lately(
    last_swept: Any, settings: Settings, seconds_ago: float | None, reported: Reported
) -> None:
    settings.TASK_QUEUE = {"SWEEP_EVERY": 5, "BACKOFF": {"base": 0, "cap": 0}}
    stuck = make_task(state="stuck", holder="gone")
    reported.clear()
    last_swept(seconds_ago)

    (task,) = Task.objects.claim("ann")

    assert (task.pk, task.attempts, task.holder) == (stuck.pk, 2, "ann")
    assert [name for name, _, _ in reported] == ["recovered", "claimed"]
    assert clock() - recovery.swept_at["default"] < 5


def test_a_process_that_has_just_swept_does_not_sweep_again(
    last_swept: Any, settings: Settings
) -> None:
    settings.TASK_QUEUE = {"SWEEP_EVERY": 60}
    make_task(state="stuck")
    last_swept(3)

    assert Task.objects.claim("ann") == []


def test_a_claim_that_finds_no_deadline_passed_recovers_nothing(
    last_swept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task(state="running")
    last_swept(None)
    recover = Mock()
    monkeypatch.setattr(recovery, "take_from_holders", recover)

    Task.objects.claim("ann")

    assert not recover.called


def test_a_claim_that_is_refused_inside_a_transaction_has_not_swept_either(
    last_swept: Any,
) -> None:
    before = row_of(make_task(state="stuck"))
    last_swept(None)

    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Task.objects.claim("ann")

    assert Task.objects.values().get() == before


def test_sweeps_at_claims_look_in_every_queue(last_swept: Any, settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": ("default", "mail")}
    stuck = make_task(state="stuck", queue="mail")
    last_swept(None)

    assert Task.objects.claim("ann", queues=["default"]) == []
    assert row_of(stuck)["status"] == TaskStatus.READY


@pytest.mark.usefixtures("portable")
def test_a_row_taken_over_between_update_and_answer_is_not_answered() -> None:
    """The answer is read back by the grant: a key alone would hand out another's task."""
    mine, lost = make_task(), make_task()
    taken: list[Task] = []

    def meanwhile(execute: Any, sql: str, *rest: Any) -> Any:
        answer = execute(sql, *rest)
        if sql.startswith("UPDATE") and not taken:
            taken.append(lost)
            take_over(lost)
        return answer

    with connection.execute_wrapper(meanwhile):
        tasks = Task.objects.claim("ann", limit=2)

    assert [task.pk for task in tasks] == [mine.pk]


def test_a_row_that_has_come_by_the_same_grant_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = make_task(state="running")
    mine = make_task()
    monkeypatch.setattr(uuid, "uuid4", lambda: other.grant_id)

    assert [task.pk for task in Task.objects.claim("ann")] == [mine.pk]


def test_trust_in_a_claim_counts_from_before_its_statement() -> None:
    make_task()
    sent: list[float] = []

    def note(execute: Any, *args: Any) -> Any:
        sent.append(clock())
        return execute(*args)

    with connection.execute_wrapper(note):
        (taken,) = Task.objects.take("ann", limit=1)

    assert taken.sent_at <= sent[-1]


# Ahead of slots


@pytest.mark.parametrize("request_id", [None, uuid.uuid4()], ids=["once", "may be repeated"])
def test_a_task_that_may_not_wait_is_claimed_for_a_free_slot_alone(
    request_id: uuid.UUID | None,
) -> None:
    many, once, other_once, ran, last = (
        make_task(max_attempts=attempts) for attempts in (3, 1, 1, 3, 3)
    )
    Task.objects.filter(pk=ran.pk).update(attempts=1)

    claimed = Task.objects.claim("ann", limit=9, free=2, request_id=request_id)

    assert [task.pk for task in claimed] == [many.pk, once.pk, last.pk]
    assert [task.pk for task in Task.objects.claim("ann", limit=2)] == [other_once.pk, ran.pk]


def test_a_free_slot_is_for_what_comes_first_of_every_queue_and_kind(settings: Settings) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "QUEUES": ("default", "mail")}
    options = [("default", 0), ("mail", 1), ("default", 1), ("mail", 0)]
    tasks = [
        make_task(max_attempts=1, queue=queue, kind=kind, priority=place)
        for place, (queue, kind) in enumerate(options)
    ]

    (first,) = Task.objects.claim("ann", queues=["default"], limit=9, free=1)
    assert first.pk == tasks[2].pk
    assert len(Task.objects.claim("ann", limit=9, free=2)) == 2


def test_a_task_with_a_key_is_claimed_for_a_free_slot_too() -> None:
    once = make_task(max_attempts=1)
    keyed = make_task(max_attempts=1, concurrency_key="crane:1", concurrency_limit=1)

    assert [task.pk for task in Task.objects.claim("ann", limit=2, free=1)] == [once.pk]
    assert [task.pk for task in Task.objects.claim("ann", limit=2, free=1)] == [keyed.pk]


# The same request again


def test_a_claim_that_is_repeated_returns_the_same_tasks_under_the_same_grants() -> None:
    make_tasks(3)
    request = uuid.uuid4()

    first = Task.objects.claim("ann", limit=2, request_id=request)
    second = Task.objects.claim("ann", limit=2, request_id=request)

    assert [(task.pk, task.grant_id) for task in first] == [
        (task.pk, task.grant_id) for task in second
    ]
    assert len({task.grant_id for task in first}) == 2
    assert second[0].now >= first[0].now
    assert Task.objects.ready().count() == 1


def test_a_repeated_claim_returns_what_it_still_holds() -> None:
    make_tasks(3)
    request = uuid.uuid4()
    done, late = Task.objects.claim("ann", limit=2, request_id=request)
    Task.objects.complete(done, None)

    (still,) = Task.objects.claim("ann", limit=2, request_id=request)

    assert still.pk == late.pk


@pytest.mark.parametrize("end", ["complete", "fail", "give back", "expire"])
def test_a_request_whose_tasks_have_ended_claims_nothing_more(end: str) -> None:
    make_tasks(2)
    request = uuid.uuid4()
    (task,) = Task.objects.claim("ann", request_id=request)
    if end == "expire":
        Task.objects.filter(pk=task.pk).update(expires_at=EPOCH)
    elif end == "give back":
        Task.objects.give_back(task, "not now")
    else:
        getattr(Task.objects, end)(task, "it is over")

    with pytest.raises(ClaimAnswered):
        Task.objects.claim("ann", request_id=request)

    assert Task.objects.filter(grants__gt=0).get().pk == task.pk


def test_a_request_that_claimed_nothing_may_claim_until_that_is_noted() -> None:
    request = uuid.uuid4()
    assert not Task.objects.claim("ann", request_id=request)
    make_task()

    (claimed,) = Task.objects.claim("ann", request_id=request)
    (again,) = Task.objects.note_empty_claim("ann", request)

    assert again.grant_id == claimed.grant_id


def test_a_request_that_was_answered_with_nothing_claims_nothing_more() -> None:
    request = uuid.uuid4()
    assert not Task.objects.note_empty_claim("ann", request)
    make_task()

    with pytest.raises(ClaimAnswered):
        Task.objects.claim("ann", request_id=request)
    with pytest.raises(ClaimAnswered):
        Task.objects.note_empty_claim("ann", request)

    assert Task.objects.ready().count() == 1


def test_the_keys_of_claims_are_forgotten_after_ten_minutes() -> None:
    keys = [ClaimKey(request_id=uuid.uuid4()) for _ in range(3)]
    ClaimKey.objects.bulk_create(keys)
    old, late, _ = keys
    ClaimKey.objects.filter(pk=old.pk).update(answered_at=after(-timedelta(seconds=601)))
    ClaimKey.objects.filter(pk=late.pk).update(answered_at=after(-timedelta(seconds=590)))

    Task.objects.note_empty_claim("ann", uuid.UUID(int=1))
    assert ClaimKey.objects.count() == 4  # not each claim looks for them
    Task.objects.note_empty_claim("ann", uuid.UUID(int=16))

    assert ClaimKey.objects.count() == 4
    assert not ClaimKey.objects.filter(pk=old.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_an_old_key_that_another_claim_is_about_to_delete_is_left_to_it(
    other_session: OtherSession, on_postgresql: None
) -> None:
    ClaimKey.objects.create(request_id=uuid.uuid4(), answered_at=EPOCH)
    other_session.begin()
    other_session.run(lambda: list(lock(ClaimKey.objects.all())))

    with transaction.atomic():
        limit_waiting("default", 1.0)
        ClaimKey.objects.remember(uuid.UUID(int=16))

    assert ClaimKey.objects.count() == 2
    other_session.commit()


def test_requests_whose_ids_begin_alike_are_not_taken_for_one() -> None:
    make_tasks(2)
    moment = uuid.uuid4().bytes[:8]
    one, two = (uuid.UUID(bytes=moment + uuid.uuid4().bytes[8:]) for _ in range(2))

    (first,) = Task.objects.claim("ann", request_id=one)
    (second,) = Task.objects.claim("ann", request_id=two)

    assert first.pk != second.pk
    assert [task.pk for task in Task.objects.claim("ann", request_id=two)] == [second.pk]


def test_a_claim_that_may_be_repeated_takes_no_statement_for_each_task(
    on_postgresql: None, django_assert_max_num_queries: Any
) -> None:
    make_tasks(20)
    Task.objects.claim("ann", limit=1, request_id=uuid.uuid4())

    with django_assert_max_num_queries(8):
        claimed = Task.objects.claim("ann", limit=19, request_id=uuid.uuid4())

    assert len({task.grant_id for task in claimed}) == 19


@pytest.mark.django_db(transaction=True)
def test_a_claim_is_refused_while_the_same_request_still_claims(
    other_session: OtherSession, on_postgresql: None
) -> None:
    make_task()
    request = uuid.uuid4()
    other_session.begin()
    other_session.run(lock_names, "default", [f"leasing_tasks.claim:{request}"])

    with pytest.raises(ClaimUnderWay):
        Task.objects.claim("ann", request_id=request)
    other_session.commit()
    assert len(Task.objects.claim("ann", request_id=request)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_is_repeated_meanwhile_finds_the_first_under_any_isolation_level(
    other_session: OtherSession, on_postgresql: None
) -> None:
    make_tasks(2)
    request = uuid.uuid4()
    first: list[Task] = []

    def claim() -> None:
        first.extend(other_session.run(lambda: Task.objects.claim("ann", request_id=request)))

    with under_repeatable_read(), after_a_query_before("pg_try_advisory_xact_lock", claim):
        (again,) = Task.objects.claim("ann", request_id=request)

    assert [again.pk] == [task.pk for task in first]
    assert Task.objects.ready().count() == 1
