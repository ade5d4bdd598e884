"""Storing tasks."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models.signals import pre_save
from django.test.utils import CaptureQueriesContext
from django.utils.translation import gettext_lazy
from pytest_django import Settings

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.functions import EPOCH, database_now
from leasing.models import LeaseState
from tasks import handler
from tasks.exceptions import InvalidArguments, NotSerializable, UnknownQueue, UnknownTask
from tasks.models import Task, TaskStatus
from tasks.querysets import duplicates
from tasks.querysets.sql import insert
from tasks.sample import SLEEP, sleep
from tests.factories import make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession
from tests.limits import Limits
from tests.tasks.support import Handlers, Reported, before_a_statement_with, row_of

pytestmark = pytest.mark.django_db

DATA = {"sleep_duration_seconds": 1}


# One task


def test_an_enqueued_task_is_ready_at_once_and_nobody_holds_it(
    database_clock: DatabaseClock,
) -> None:
    task = Task.objects.enqueue(SLEEP, DATA)

    assert (task.name, task.task_data, task.status) == (SLEEP, DATA, TaskStatus.READY)
    assert (task.queue, task.priority, task.attempts, task.max_attempts) == ("default", 0, 0, 10)
    assert (task.unique_key, task.duplicates, task.last_error) == (None, 0, "")
    assert (task.started_at, task.processed_at, task.task_output) == (None, None, None)
    assert (task.holder, task.grant_id, task.expires_at) == ("", None, EPOCH)
    assert task.lease_state(database_clock.now) == LeaseState.FREE
    assert list(Task.objects.ready()) == [task]


def test_a_task_is_due_from_the_moment_it_was_enqueued() -> None:
    before = database_now("default")
    task = Task.objects.enqueue(SLEEP, DATA)

    assert before <= task.created_at <= database_now("default")
    assert before <= task.scheduled_at <= database_now("default")


# The caller's transaction


@pytest.mark.django_db(transaction=True)
def test_a_task_is_seen_by_others_only_when_its_transaction_commits(
    other_session: OtherSession,
) -> None:
    with transaction.atomic():
        Task.objects.enqueue(SLEEP, DATA)
        Task.objects.enqueue_many(SLEEP, [DATA, DATA])
        seen_before = other_session.run(Task.objects.count)

    assert seen_before == 0
    assert other_session.run(Task.objects.count) == 3


@pytest.mark.django_db(transaction=True)
def test_a_rollback_takes_the_task_with_it_and_tells_nobody(reported: Reported) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Task.objects.enqueue(SLEEP, DATA)
        Task.objects.enqueue(SLEEP, DATA, unique_key="k")
        Task.objects.enqueue_many(SLEEP, [DATA])
        raise ZeroDivisionError

    assert not Task.objects.exists()
    assert reported == []


@pytest.mark.django_db(transaction=True)
def test_enqueued_is_told_after_the_commit(reported: Reported) -> None:
    with transaction.atomic():
        one = Task.objects.enqueue(SLEEP, DATA)
        many = Task.objects.enqueue_many(SLEEP, [DATA, DATA])
        reported_before = list(reported)

    assert reported_before == []
    assert reported == [("enqueued", task.pk, {}) for task in (one, *many)]


# Which code runs it


@pytest.mark.parametrize("name", ["no.such.task", "os.system", "", "sample.sleep ", print])
def test_a_name_or_function_that_nobody_registered_is_refused(name: Any) -> None:
    with pytest.raises(UnknownTask, match="No handler is registered"):
        Task.objects.enqueue(name)

    assert not Task.objects.exists()


@pytest.mark.usefixtures("handlers", "queues")
def test_a_task_has_the_defaults_of_its_handler_unless_the_caller_differs() -> None:
    @handler("reports.build", queue="reports", max_attempts=3)
    def build(ctx: Any, report_id: int) -> None: ...

    task = Task.objects.enqueue(build, {"report_id": 42})

    assert (task.name, task.queue, task.max_attempts) == ("reports.build", "reports", 3)
    task = Task.objects.enqueue(build, {"report_id": 42}, queue="mail", max_attempts=1)
    assert (task.queue, task.max_attempts) == ("mail", 1)


def test_the_setting_decides_where_neither_caller_nor_handler_does(
    settings: Settings,
) -> None:
    settings.TASK_QUEUE = {"MAX_ATTEMPTS": 4}

    assert Task.objects.enqueue(SLEEP, DATA).max_attempts == 4


def test_an_unknown_queue_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownQueue) as refusal:
        Task.objects.enqueue(SLEEP, DATA, queue="defualt")

    assert str(refusal.value) == (
        "Unknown queue 'defualt': it is not in TASK_QUEUE['QUEUES']. Did you mean 'default'?"
    )


@pytest.mark.parametrize("queue", ["no-such-queue", "Default", "default "])
def test_a_queue_that_is_not_in_the_settings_is_refused(queue: str) -> None:
    with pytest.raises(UnknownQueue, match=r"TASK_QUEUE\['QUEUES'\]"):
        Task.objects.enqueue(SLEEP, DATA, queue=queue)

    assert not Task.objects.exists()


# Arguments


def build(ctx: Any, account: int, day: str = "mon", *, copies: int = 1) -> None: ...


@pytest.fixture
def builds(handlers: Handlers) -> str:
    handlers["reports.build"] = build
    return "reports.build"


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({}, "'account' is missing"),
    ({"acount": 7}, "'account' is missing; 'acount' is unknown (did you mean 'account'?)"),
    ({"account": 7, "colour": "red"}, "'colour' is unknown"),
    ({"account": 7, "dya": "tue"}, "'dya' is unknown (did you mean 'day'?)"),
    ({"account": 7, "ctx": 1}, "'ctx' is its context"),
]


@pytest.mark.parametrize(("data", "reason"), UNFIT, ids=[str(data) for data, _ in UNFIT])
def test_data_that_the_handler_does_not_take_is_refused(
    builds: str, data: dict[str, Any], reason: str
) -> None:
    fine = {"account": 7, "copies": 2}
    for refused in (
        lambda: Task.objects.enqueue(builds, data),
        lambda: Task.objects.enqueue_on_commit(builds, data),
        lambda: Task.objects.enqueue_many(builds, [fine, data]),
    ):
        with pytest.raises(InvalidArguments) as error:
            refused()
        assert str(error.value) == (
            "build(ctx, account, day=..., *, copies=...) does not take this data: " + reason + "."
        )

    assert not Task.objects.exists()
    assert Task.objects.enqueue(builds, fine).task_data == fine


# Data


def nested(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(depth):
        data = {"in": data}
    return data


def lists(depth: int) -> list[Any]:
    data: list[Any] = [1]
    for _ in range(depth - 1):
        data = [data]
    return data


def circular() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["itself"] = data
    return data


EVIL: dict[str, Any] = {
    "NaN": {"x": math.nan},
    "infinity": {"x": [math.inf]},
    "minus infinity": {"x": {"y": -math.inf}},
    "a set": {"x": {1, 2}},
    "bytes": {"x": b"abc"},
    "an object": {"x": object()},
    "NUL": {"x": "a\0b"},
    "NUL in a list": {"x": [["\0"]]},
    "NUL in a tuple": {"x": ("\0",)},
    "NUL in a key": {"x": {"\0": 1}},
    "NUL in a key at the top": {"\0": 1},
    "a lone surrogate": {"x": "\ud800"},
    "a lone surrogate in a key": {"\udfff": 1},
    "a number of 5,000 digits": {"x": 10**5000},
    "nested 201 deep": nested(200),
    "lists nested 201 deep": {"x": lists(200)},
    "nested 100,000 deep": nested(100_000),
    "circular": circular(),
    "a list": [1, 2],
    "a string": "text",
    "a number": 1,
    "false": False,
    "a key that is no string": {1: "one"},
    "a key that is a tuple": {"x": {(1, 2): 3}},
}


@pytest.mark.parametrize("data", [pytest.param(data, id=what) for what, data in EVIL.items()])
def test_data_that_is_no_json_object_of_every_database_is_refused(data: Any) -> None:
    with pytest.raises(NotSerializable):
        Task.objects.enqueue("jobs.echo", data)
    with pytest.raises(NotSerializable):
        Task.objects.enqueue_many("jobs.echo", [{"fine": 1}, data])

    assert not Task.objects.exists()


GOOD: dict[str, Any] = {
    "nothing": {},
    "every type": {"a": [1, 2.5, "x", True, None, {"b": {}}]},
    "beyond the first plane": {"ключ": "日本語 🙂 \U0010ffff"},
    "quotes and controls": {"x": "' \" \\ \n \t \x01 \x7f \u2028"},
    "a backslash, u and zeros": {"x": "\\u0000", "\\u0000": 1},
    "large numbers": {"x": [2**63, -(2**64), 10**300, -1.5e9, 5e-324]},
    "nested 200 deep": nested(199),
    "wide": {"x": [[{}]] * 1000},
    "half a megabyte": {"x": "y" * 500_000},
}


@pytest.mark.parametrize("data", [pytest.param(data, id=what) for what, data in GOOD.items()])
def test_json_objects_come_back_as_they_went_in(data: dict[str, Any]) -> None:
    task = Task.objects.enqueue("jobs.echo", data)

    assert Task.objects.get(pk=task.pk).task_data == data


#: As callers have it, and as handlers get it.
RICH: dict[str, Any] = {
    "id": UUID(int=7),
    "amount": Decimal("3.10"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "alarm": time(3, 4, 5, 678901),
    "pause": timedelta(seconds=90),
    "label": gettext_lazy("Yes"),
    "all": [{"id": UUID(int=8)}, (Decimal("1"), 1)],
}
PLAIN: dict[str, Any] = {
    "id": "00000000-0000-0000-0000-000000000007",
    "amount": "3.10",
    "day": "2026-01-02",
    "at": "2026-01-02T03:04:05.678901+00:00",
    "alarm": "03:04:05.678901",
    "pause": "P0DT00H01M30S",
    "label": "Yes",
    "all": [{"id": "00000000-0000-0000-0000-000000000008"}, ["1", 1]],
}


def test_a_handler_gets_strings_for_what_django_can_write_as_such() -> None:
    one = Task.objects.enqueue("jobs.echo", RICH)
    two, plain = Task.objects.enqueue_many("jobs.echo", [RICH, {"n": 1}])
    unique = Task.objects.enqueue("jobs.echo", RICH, unique_key="k")

    assert one.data == two.data == unique.data == PLAIN
    assert RICH["id"] == UUID(int=7)  # what the caller has stays as it is
    keys = [one.pk, two.pk, unique.pk]
    assert list(Task.objects.filter(pk__in=keys).values_list("task_data", flat=True)) == [PLAIN] * 3
    assert plain.data == {"n": 1}


@pytest.mark.usefixtures("own_handlers")
def test_the_key_of_a_limit_is_made_of_what_is_stored() -> None:
    @handler("alarms.ring", concurrency_key="{at}")
    def ring(ctx: Any, at: str) -> None: ...

    tasks = [
        Task.objects.enqueue(ring, {"at": RICH["at"]}),
        *Task.objects.enqueue_many(ring, [{"at": RICH["at"]}]),
        ring.enqueue(PLAIN["at"]),
    ]

    assert {task.concurrency_key for task in tasks} == {PLAIN["at"]}


@pytest.mark.usefixtures("own_handlers")
def test_a_limit_has_the_default_of_what_data_lacks() -> None:
    @handler("alarms.ring", concurrency_key="{room}:{since}")
    def ring(ctx: Any, room: int = 7, since: date = RICH["day"]) -> None: ...

    tasks = [
        ring.enqueue(),
        ring.enqueue(room=7, since=RICH["day"]),
        *ring.enqueue_many([ring.data(), ring.data(room=8)]),
    ]

    keys = [f"7:{PLAIN['day']}"] * 3 + [f"8:{PLAIN['day']}"]
    assert [task.concurrency_key for task in tasks] == keys
    assert [task.data for task in tasks[2:]] == [{}, {"room": 8}]


def test_what_nobody_can_write_as_a_string_is_refused_beside_what_they_can() -> None:
    for data in ({"id": UUID(int=7), "x": {1}}, {"id": UUID(int=7), "x": float("nan")}):
        with pytest.raises(NotSerializable, match="The data is not JSON: (?!.*UUID)"):
            Task.objects.enqueue("jobs.echo", data)
        with pytest.raises(NotSerializable, match="The data is not JSON: (?!.*UUID)"):
            Task.objects.enqueue_many("jobs.echo", [{}, data])

    assert not Task.objects.exists()


# Bounds


@pytest.mark.parametrize("priority", [-32769, 32768, 1.0, "1", True, None])
def test_a_priority_out_of_bounds_is_refused(priority: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number from -32768 to 32767"):
        Task.objects.enqueue(SLEEP, DATA, priority=priority)


@pytest.mark.parametrize("max_attempts", [0, -1, 32768, 1.0, "1", True])
def test_a_number_of_attempts_out_of_bounds_is_refused(max_attempts: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number from 1 to 32767"):
        Task.objects.enqueue(SLEEP, DATA, max_attempts=max_attempts)


@pytest.mark.parametrize(("priority", "max_attempts"), [(-32768, 1), (32767, 32767)])
def test_bounds_are_part_of_what_is_allowed(priority: int, max_attempts: int) -> None:
    task = Task.objects.enqueue(SLEEP, DATA, priority=priority, max_attempts=max_attempts)

    assert row_of(task)["priority"] == priority
    assert row_of(task)["max_attempts"] == max_attempts


@pytest.mark.parametrize("option", ["delay", "timeout", "progress_timeout", "unique_for"])
@pytest.mark.parametrize("value", [-1, 1e9, math.nan, [5], True, timedelta(days=3651)])
def test_a_time_out_of_bounds_is_a_value_error_of_its_own(option: str, value: Any) -> None:
    options = {option: value} | ({"unique_key": "k"} if option == "unique_for" else {})
    with pytest.raises(ValueError, match=rf"^The (window of a unique key|{option}) must ") as error:
        Task.objects.enqueue(SLEEP, DATA, **options)

    assert not isinstance(error.value, InvalidTTL)
    assert "e+" not in str(error.value).partition(", not ")[0]


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Task.objects.enqueue(SLEEP, DATA, scheduled_at=datetime(2030, 1, 1))

    assert not Task.objects.exists()


@pytest.mark.parametrize("hours", [9, 16, 23.99, -23.99])
def test_a_moment_of_any_time_zone_is_the_same_moment(hours: float) -> None:
    moment = datetime(2030, 1, 1, 9, tzinfo=timezone(timedelta(hours=hours)))

    task = Task.objects.enqueue(SLEEP, DATA, scheduled_at=moment)

    assert row_of(task)["scheduled_at"] == moment
    later = moment + timedelta(hours=1)
    assert Task.objects.reschedule(scheduled_at=later) == 1
    assert row_of(task)["scheduled_at"] == later
    assert list(Task.objects.scheduled()) == [task]
    assert not Task.objects.ready().exists()


# Unique keys


def test_a_second_enqueue_with_the_same_key_returns_the_first_and_is_counted(
    reported: Reported,
) -> None:
    first = Task.objects.enqueue(SLEEP, DATA, unique_key="report:42")

    second = Task.objects.enqueue("jobs.echo", {"other": 1}, unique_key="report:42", priority=5)
    third = Task.objects.enqueue(SLEEP, DATA, unique_key="report:42")

    assert first.pk == second.pk == third.pk
    assert (second.duplicates, third.duplicates) == (1, 2)
    assert (second.name, second.priority) == (SLEEP, 0)
    assert Task.objects.count() == 1
    assert reported == [(name, first.pk, {}) for name in ("enqueued", "duplicate", "duplicate")]


def test_another_key_is_another_task_and_its_count_its_own() -> None:
    first = Task.objects.enqueue(SLEEP, DATA, unique_key="report:42")
    other = Task.objects.enqueue(SLEEP, DATA, unique_key="report:43")
    Task.objects.enqueue(SLEEP, DATA)
    Task.objects.enqueue(SLEEP, DATA, unique_key="report:43")

    assert Task.objects.count() == 3
    assert (row_of(first)["duplicates"], row_of(other)["duplicates"]) == (0, 1)


@pytest.mark.parametrize(
    "state", ["ready", "scheduled", "running", "stuck", "retrying", "recovered", "returned"]
)
def test_a_key_is_taken_for_as_long_as_its_task_has_not_ended(state: str) -> None:
    first = make_task(state=state, unique_key="k")

    assert Task.objects.enqueue(SLEEP, DATA, unique_key="k").pk == first.pk


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "a\0b", " a", "a ", 7])
def test_a_key_that_is_no_name_is_refused(key: Any) -> None:
    with pytest.raises(InvalidResource, match="unique key"):
        Task.objects.enqueue(SLEEP, DATA, unique_key=key)


def test_a_duplicate_leaves_the_callers_transaction_in_order() -> None:
    Task.objects.enqueue(SLEEP, DATA, unique_key="k")

    with transaction.atomic():
        Task.objects.enqueue(SLEEP, DATA, unique_key="k")
        Task.objects.enqueue(SLEEP, DATA)

    assert Task.objects.count() == 2


def test_a_key_that_is_freed_meanwhile_is_used() -> None:
    first = make_task(state="running", unique_key="k")

    with before_a_statement_with('"unique_key" = ', lambda: Task.objects.complete(first)):
        second = Task.objects.enqueue(SLEEP, DATA, unique_key="k")

    assert second.pk != first.pk
    assert row_of(second)["unique_key"] == "k"
    assert row_of(first)["duplicates"] == 0


def test_an_insert_that_is_refused_for_other_reasons_says_so(
    request: pytest.FixtureRequest,
) -> None:
    tries = []

    def refuse(**said: Any) -> None:
        tries.append(said["instance"])
        raise IntegrityError("another constraint")

    pre_save.connect(refuse, sender=Task)
    request.addfinalizer(lambda: pre_save.disconnect(refuse, sender=Task))
    with pytest.raises(IntegrityError, match="another constraint"):
        Task.objects.enqueue(SLEEP, DATA, unique_key="k")

    assert len(tries) == duplicates.TRIES + 1


@pytest.mark.usefixtures("on_postgresql")
def test_a_sequence_that_is_behind_its_table_is_told_of() -> None:
    """Neither is a key to blame, nor is nothing stored without a word."""
    first, *_ = [make_task() for _ in range(duplicates.TRIES + 1)]
    put_back = "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s, false)"
    with connection.cursor() as cursor:
        cursor.execute(put_back, [Task._meta.db_table, first.pk])

    with pytest.raises(IntegrityError, match="leasing_tasks_task_pkey"):
        Task.objects.enqueue(SLEEP, DATA, unique_key="k")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_enqueues_at_once_the_second_waits_for_what_becomes_of_the_first(
    other_session: OtherSession, commits: bool
) -> None:
    with transaction.atomic():
        mine = Task.objects.enqueue(SLEEP, DATA, unique_key="k")
        theirs = other_session.start(lambda: Task.objects.enqueue(SLEEP, DATA, unique_key="k"))
        transaction.set_rollback(not commits)

    answer = theirs.result(20)
    (only,) = Task.objects.all()
    assert only.pk == answer.pk
    assert only.duplicates == int(commits)
    assert (only.pk == mine.pk) is commits or connection.vendor == "sqlite"


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "mail", "priority": -3, "max_attempts": 2, "timeout": 9, "progress_timeout": 3},
        {"delay": 90},
        {"scheduled_at": datetime(2031, 1, 1, tzinfo=UTC)},
        {"concurrency_key": "100 %s of 'a'", "concurrency_limit": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "data", [DATA, {"odd": "100 %s 'é\\ \"\u2028🙂", "n": [1.5, None]}], ids=len
)
def test_a_row_is_what_django_would_have_stored_however_it_was_stored(
    options: dict[str, Any],
    data: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each has its own.
    moments = {"created_at"} if "scheduled_at" in options else {"scheduled_at", "created_at"}

    def stored() -> list[Task]:
        return [
            Task.objects.enqueue("jobs.echo", data, **options),
            *Task.objects.enqueue_many("jobs.echo", [data, data], **options),
        ]

    ours = stored()
    monkeypatch.setattr(insert, "serves", lambda model, connection: False)
    for task, theirs in zip(ours, stored(), strict=True):
        row = row_of(task)
        assert row == {column: getattr(task, column) for column in row}
        assert not task._state.adding
        assert {k: v for k, v in row.items() if k not in moments | {"id"}} == {
            k: v for k, v in row_of(theirs).items() if k not in moments | {"id"}
        }
        if "scheduled_at" not in options:
            delay = timedelta(seconds=options.get("delay", 0))
            assert abs(row["scheduled_at"] - row["created_at"] - delay) < timedelta(seconds=30)


# Many tasks


def test_many_are_stored_in_the_order_given(database_clock: DatabaseClock) -> None:
    later = database_clock.now + timedelta(hours=1)

    tasks = Task.objects.enqueue_many(
        "jobs.echo", [{"n": n} for n in range(5)], priority=2, scheduled_at=later, max_attempts=3
    )

    assert [task.task_data["n"] for task in tasks] == list(range(5))
    assert [task.pk for task in tasks] == sorted(task.pk for task in tasks)
    rows = Task.objects.order_by("pk").values_list("priority", "scheduled_at", "max_attempts")
    assert list(rows) == [(2, later, 3)] * 5


def test_many_may_be_none() -> None:
    assert Task.objects.enqueue_many(SLEEP, []) == []


def test_many_can_come_from_a_generator() -> None:
    assert len(Task.objects.enqueue_many("jobs.echo", ({"n": n} for n in range(3)))) == 3


def test_many_are_stored_all_or_none(limits: Limits, reported: Reported) -> None:
    limits(insert_batch=2)
    inserts = []

    def fail_the_second(execute: Any, sql: str, *rest: Any) -> Any:
        if "INSERT INTO" in sql:
            inserts.append(sql)
            if len(inserts) == 2:
                raise DatabaseError("the disk is full")
        return execute(sql, *rest)

    with (
        pytest.raises(DatabaseError, match="the disk is full"),
        connection.execute_wrapper(fail_the_second),
    ):
        Task.objects.enqueue_many(SLEEP, [DATA] * 4)

    assert len(inserts) == 2
    assert not Task.objects.exists()
    assert reported == []


def test_many_ride_few_statements(django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(60):  # SQLite binds 999 values in each
        Task.objects.enqueue_many(SLEEP, [DATA] * 1000)

    assert Task.objects.count() == 1000


@pytest.mark.parametrize(("in_one", "statements"), [(4, 1), (2, 2), (1, 4), (0, 4)])
@pytest.mark.usefixtures("on_postgresql")
def test_many_are_stored_by_as_few_statements_as_carry_their_text(
    in_one: int, statements: int, limits: Limits
) -> None:
    """A single one is stored, however long it is."""
    data = [{"text": f"{number} long"} for number in range(4)]
    limits(insert_text=len(json.dumps(data[:in_one])))

    with CaptureQueriesContext(connection) as queries:
        Task.objects.enqueue_many("jobs.echo", data)

    in_transaction = 2 if statements > 1 else 0
    assert len(queries) == statements + in_transaction
    assert list(Task.objects.order_by("pk").values_list("task_data", flat=True)) == data


async def awaited(called: Any) -> None:
    await called


@pytest.mark.parametrize(
    "verb", ["enqueue", "aenqueue", "enqueue_on_commit", "enqueue_many", "aenqueue_many"]
)
def test_an_unknown_argument_is_refused_as_python_does(verb: str) -> None:
    data: Any = [DATA] if "many" in verb else DATA

    with pytest.raises(TypeError, match="unexpected keyword argument 'priorty'"):
        async_to_sync(awaited)(getattr(Task.objects, verb)(SLEEP, data, priorty=5))

    assert Task.objects.count() == 0


MOMENT = "pass scheduled_at=, a datetime with a time zone, or delay=, seconds or a timedelta."


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("eta", MOMENT),
        ("run_after", MOMENT),
        ("countdown", "pass delay=, seconds or a timedelta."),
        ("priorty", "did you mean 'priority'?"),
        ("invoice_id", "the data of the task goes to enqueue()."),
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_was_meant(option: str, hint: str) -> None:
    with pytest.raises(TypeError) as refusal:
        cast("Any", sleep).using(**{option: 5})

    assert str(refusal.value) == f"using() got an unexpected keyword argument '{option}': {hint}"
