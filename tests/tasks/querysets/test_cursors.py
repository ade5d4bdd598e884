"""Claims that go on behind the ones before."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from tasks.models import Queue, Task
from tasks.querysets import worker
from tasks.querysets.sql import claim as postgres
from tasks.querysets.sql import cursors, plans
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.registry import Kind
from tests.factories import make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import FakeClock
from tests.limits import Limits
from tests.tasks.support import take_back

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("on_postgresql", "unheard")]


#: Makes claims one after the other with one cursor, as those of a worker. Returns their tasks.
Take = Callable[..., list[int]]


@pytest.fixture
def cursor(holder_clock: FakeClock) -> ClaimCursor:
    return ClaimCursor()


@pytest.fixture
def take(cursor: ClaimCursor) -> Take:
    def take(limit: int, **options: Any) -> list[int]:
        return [each.id for each in Task.objects.take("ann", limit=limit, cursor=cursor, **options)]

    return take


def enqueue(count: int = 1, **options: Any) -> list[int]:
    return [task.pk for task in make_tasks(count, **options)]


def test_a_claim_begins_behind_the_last_task_of_the_claim_before(take: Take) -> None:
    tasks = enqueue(5)
    assert take(2) == tasks[:2]
    take_back(Task.objects.get(pk=tasks[0]))

    with CaptureQueriesContext(connection) as queries:
        assert take(2) == tasks[2:4]

    assert len(queries) == 1
    assert take(2) == [tasks[4], tasks[0]]
    assert take(2) == []


def test_a_claim_that_finds_too_few_looks_from_the_beginning_at_once(take: Take) -> None:
    low = enqueue(2, priority=-1)
    usual = enqueue(3)
    assert take(2) == usual[:2]
    high = enqueue(1, priority=1)

    assert take(3) == [usual[2], *high, low[0]]
    assert take(3) == [low[1]]
    with CaptureQueriesContext(connection) as queries:
        assert take(3) == []
    assert len(queries) == 1


def test_a_claim_that_came_past_tasks_with_keys_begins_again_with_these(take: Take) -> None:
    """That look is from the beginning already: another before it would be one too many."""
    usual = enqueue(2)
    assert take(1) == usual[:1]
    (keyed,) = enqueue(1, concurrency_key="crane")

    with CaptureQueriesContext(connection) as queries:
        assert take(3) == [usual[1], keyed]

    looks = [query for query in queries.captured_queries if "chosen" in query["sql"]]
    assert len(looks) == 1


def test_further_on_the_longest_due_goes_first_and_then_the_first_stored(
    database_clock: DatabaseClock, take: Take
) -> None:
    begin, *others = [
        enqueue(priority=-32768, scheduled_at=database_clock.now - timedelta(seconds=ago))[0]
        for ago in (9, 5, 7, 5, 8)
    ]
    assert take(1) == [begin]

    assert take(3) == [others[3], others[1], others[0]]
    assert take(3) == [others[2]]


def test_higher_priorities_wait_for_the_next_look_from_the_beginning(
    holder_clock: FakeClock, take: Take
) -> None:
    usual = enqueue(4)
    assert take(1) == usual[:1]
    high = enqueue(1, priority=1)
    holder_clock.now += cursors.LASTS * 0.9
    assert take(1) == usual[1:2]

    holder_clock.now += cursors.LASTS * 0.2

    assert take(1) == high
    assert take(1) == usual[2:3]


@pytest.mark.usefixtures("queues")
def test_claims_begin_again_for_something_of_higher_priority_than_they_are_at(
    take: Take, cursor: ClaimCursor
) -> None:
    usual = enqueue(5, priority=1)
    assert take(1) == usual[:1]
    high = enqueue(2, priority=2)

    cursor.end_below("default", 1)
    cursor.end_below("mail", 2)
    assert take(1) == usual[1:2]
    cursor.end_below("default", 2)

    assert take(3) == [*high, usual[2]]
    cursor.end_below("default", 2)
    assert take(2) == [*usual[3:]]


def test_a_clock_that_went_back_begins_at_the_beginning(
    holder_clock: FakeClock, take: Take
) -> None:
    usual = enqueue(2)
    assert take(1) == usual[:1]
    high = enqueue(1, priority=1)

    holder_clock.now -= 60

    assert take(1) == high


def test_a_task_that_is_gone_leads_nowhere_and_nothing_is_missed(take: Take) -> None:
    first, second = enqueue(2)
    assert take(1) == [first]
    Task.objects.filter(pk=first).delete()

    assert take(1) == [second]


@pytest.mark.usefixtures("queues")
def test_each_queue_has_its_own_place(monkeypatch: pytest.MonkeyPatch, take: Take) -> None:
    monkeypatch.setattr(random, "shuffle", lambda names: None)
    mails, reports = enqueue(3, queue="mail"), enqueue(3, queue="reports")
    both = ["mail", "reports"]
    assert take(1, queues=both) == mails[:1]
    assert take(1, queues=both[::-1]) == reports[:1]
    for key in (mails[0], reports[0]):
        take_back(Task.objects.get(pk=key))

    assert take(1, queues=both) == mails[1:2]
    assert take(1, queues=both[::-1]) == reports[1:2]
    assert sorted(take(9, queues=both)) == [mails[0], mails[2], reports[0], reports[2]]


def test_claims_of_a_part_of_the_tasks_have_a_place_of_their_own(take: Take) -> None:
    tasks = enqueue(3)
    assert take(1) == tasks[:1]
    take_back(Task.objects.get(pk=tasks[0]))

    part = Task.objects.exclude(name="jobs.other")
    assert [each.id for each in part.take("ann", limit=1)] == tasks[:1]


@pytest.mark.usefixtures("queues")
def test_further_on_a_claim_keeps_to_its_queue_and_its_kind(take: Take) -> None:
    mails = enqueue(3, queue="mail")
    enqueue(1, queue="reports")
    enqueue(1, queue="mail", kind=Kind.COROUTINE.number)
    options = {"queues": ["mail"], "kinds": [Kind.THREAD.number]}

    assert take(1, **options) == mails[:1]
    assert take(9, **options) == mails[1:]


@pytest.mark.usefixtures("queues")
def test_further_on_nothing_of_a_paused_queue_is_claimed(take: Take) -> None:
    mails = enqueue(2, queue="mail")
    assert take(1, queues=["mail"]) == mails[:1]

    Queue.objects.pause("mail")

    assert take(1, queues=["mail"]) == []


def test_tasks_with_a_key_are_seated_before_others_further_on(take: Take) -> None:
    free = enqueue(3)
    assert take(1) == free[:1]
    keyed = Task.objects.enqueue("jobs.echo", {}, concurrency_key="a").pk
    more = enqueue(1)

    assert sorted(take(4)) == [*free[1:], keyed, *more]


@contextmanager
def claims_sent() -> Iterator[list[str]]:
    """The statements of claims in the block, without what has them planned anew."""
    sent: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        if "chosen AS" in sql:
            sent.append(sql.rpartition("--")[0])
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield sent


def refuse(*arguments: Any, **options: Any) -> Any:
    raise OperationalError("the database went away")


def test_what_is_granted_is_not_forgotten_when_looking_further_fails(
    monkeypatch: pytest.MonkeyPatch, take: Take
) -> None:
    first, second, *_ = enqueue(2)
    assert take(1) == [first]
    further = postgres._take
    answers = iter([further, refuse])
    monkeypatch.setattr(postgres, "_take", lambda *given: next(answers)(*given))

    assert take(2) == [second]

    monkeypatch.setattr(postgres, "_take", refuse)
    with pytest.raises(OperationalError):
        take(2)


@pytest.mark.parametrize("verb", ["claim", "take"])
def test_what_is_granted_is_not_forgotten_when_seating_fails(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(2)
    Task.objects.enqueue("jobs.echo", {}, concurrency_key="a")
    monkeypatch.setattr(worker, "_grant", refuse)

    assert len(getattr(Task.objects, verb)("ann", limit=9)) == 2
    with pytest.raises(OperationalError):
        getattr(Task.objects, verb)("ann", limit=9)


@pytest.mark.parametrize("verb", ["claim", "take"])
def test_after_a_slow_claim_claims_are_planned_anew(
    verb: str, holder_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_slow_at", float("-inf"))
    holder_clock.now = 1e6 * plans.PLAN_LASTS
    slow: list[float] = []
    seen: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql.rpartition("--")[2])
        holder_clock.now += slow.pop() if slow else 0.001
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        for seconds in (0.001, plans.SLOW + 0.001, 0.001, plans.SLOW + 0.001, 0.001):
            slow.append(seconds)
            getattr(Task.objects, verb)("ann")
        holder_clock.now += plans.SLOW_LASTS
        for seconds in (plans.SLOW + 0.001, 0.001):
            slow.append(seconds)
            getattr(Task.objects, verb)("ann")

    assert seen[0] == seen[1] != seen[2]
    # Where all of them are slow, that is not for want of a plan.
    assert seen[2] == seen[3] == seen[4] == seen[5] != seen[6]


def test_claims_of_one_plan_send_the_same_object(holder_clock: FakeClock, take: Take) -> None:
    holder_clock.now = 1e6 * plans.PLAN_LASTS
    sent: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        sent.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        for seconds in (0.0, 0.0, plans.PLAN_LASTS, 0.0):
            holder_clock.now += seconds
            take(1)

    assert sent[0] is sent[1]
    assert sent[1] != sent[2]
    assert sent[2] is sent[3]


@pytest.mark.parametrize(("of_the_limit", "again"), [(0.9, False), (1.1, True)])
def test_a_claim_of_many_may_take_longer(
    of_the_limit: float,
    again: bool,
    holder_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    take: Take,
) -> None:
    monkeypatch.setattr(plans, "_slow_at", float("-inf"))
    holder_clock.now = 1e6 * plans.PLAN_LASTS
    enqueue(4)
    before = plans.planned("")

    def wait(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.lstrip().startswith("WITH"):
            seconds = plans.SLOW + 3 * plans.SLOW_EACH
            holder_clock.now += of_the_limit * seconds
        return execute(sql, *rest)

    with connection.execute_wrapper(wait):
        assert len(take(3)) == 3

    assert (plans.planned("") != before) == again


@pytest.mark.parametrize("size", [1, 100])
def test_a_claim_that_was_prepared_is_planned_once(
    size: int, monkeypatch: pytest.MonkeyPatch, take: Take
) -> None:
    """By a plan that serves for any limit, as soon as the server has seen enough others."""
    Task.objects.enqueue_many("jobs.echo", [{}] * 2000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE leasing_tasks_task")
    with claims_sent() as statements:
        assert take(size)
        assert take(size)
        assert Task.objects.claim("ann", limit=size)
    server: Any = connection.connection
    monkeypatch.setattr(server, "prepare_threshold", 0)
    parameters = {
        "queues": ["default"] * 3,
        "kinds": [0, 1, 2],
        "room": 100,
        "free": 4,
        "after": [None] * 3,
        "reported": [],
        "holder": "ann",
        "noise": bytes(16 * 100),
        "ttl": timedelta(seconds=30),
    }
    for text in statements:
        for _ in range(8):
            psycopg.Cursor(server).execute(text, parameters, prepare=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '%chosen AS%'"
        )
        plans = [generic for (generic,) in cursor.fetchall()]
    assert len(plans) == len(statements) == 3
    assert min(plans) > 0


def test_what_a_claim_has_locked_it_does_not_look_for_among_all_that_is_ready(take: Take) -> None:
    # As planned while little was ready, and used when much is.
    enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE leasing_tasks_task")
        cursor.execute("SET LOCAL enable_seqscan = off")
        with CaptureQueriesContext(connection) as queries:
            assert len(take(1)) == 1
        claim = next(each["sql"] for each in queries if "chosen" in each["sql"])
        cursor.execute(f"EXPLAIN {claim}")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert plan.count("using leasing_tasks_task_to_claim") == 1, plan
    assert "using leasing_tasks_task_pkey" in plan


@pytest.mark.parametrize(("seconds", "again"), [(1.0, True), (plans.PLAN_LASTS + 1, False)])
def test_statements_are_planned_anew_after_a_while(
    seconds: float, again: bool, holder_clock: FakeClock, limits: Limits
) -> None:
    """The statement stays the same for some time, and then does not: nothing prepared is kept for
    longer."""
    limits(slow=math.inf)
    holder_clock.now = 1e6 * plans.PLAN_LASTS
    cursor = ClaimCursor(lasts=3600.0)
    enqueue(3)

    def statements() -> list[str]:
        claimed: list[Any] = []
        sent: list[str] = []

        def note(execute: Any, sql: str, *rest: Any) -> Any:
            sent.extend([sql] if sql.lstrip().startswith("WITH") else [])
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            claimed += Task.objects.take("ann", cursor=cursor)
            assert Task.objects.complete_claimed([(each, 1) for each in claimed]) == []
        return sent

    first = statements()
    before = statements()
    holder_clock.now += seconds
    after = statements()

    assert (before == after) == again
    assert first[0] != before[0]


def test_psycopg_parses_a_claim_once(take: Take) -> None:
    """It keeps what it has parsed of texts up to a length."""
    first, *_ = enqueue(900)

    with claims_sent() as statements:
        Task.objects.take_one(first, "ann", queue="default")
        assert len(take(300)) == len(take(300)) == 300
        Task.objects.claim("ann", limit=300)

    assert len(statements) == 4
    longest = psycopg._queries.MAX_CACHED_STATEMENT_LENGTH
    assert max(map(len, statements)) + len(plans.planned("")) <= longest


def test_a_claim_has_one_text_for_sizes_alike(take: Take) -> None:
    sizes = (16, 17, 300)
    enqueue(3 * sum(sizes))

    with claims_sent() as statements:
        for size in sizes:
            assert [len(take(size)), len(take(size))] == [size] * 2
            assert len(Task.objects.claim("ann", limit=size)) == size

    for most, count in ((16, 3), (256, 2), (4096, 2)):
        assert sum(f"LIMIT {most} FOR" in text for text in set(statements)) == count
