"""Schedules: each moment is enqueued once, by the first that looks, and pauses are observed."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from leasing.exceptions import InvalidResource
from leasing.functions import DbNow, after
from tasks import handler, schedule
from tasks.checks.settings import check_settings
from tasks.exceptions import InvalidSchedule, NotSerializable
from tasks.maintenance import scheduler
from tasks.models import Schedule, ScheduleSlot, Task
from tasks.querysets import schedule as querysets
from tasks.scheduling import declarations
from tasks.scheduling.declarations import Declaration
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, just_before_the_update
from tests.limits import Limits
from tests.logs import logged
from tests.pages import queries
from tests.tasks.support import (
    Handlers,
    before_a_statement_with,
    end_well,
    grant_to,
    locks_and_writes,
    refusing,
)

pytestmark = pytest.mark.django_db

#: Where ``database_clock`` begins.
START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = 3600.0


@pytest.fixture(autouse=True)
def declared(
    monkeypatch: pytest.MonkeyPatch, handlers: Handlers, own_declarations: dict[str, Declaration]
) -> dict[str, Declaration]:
    """What code declares; ``jobs.echo`` is a handler of the tests' app."""
    monkeypatch.setattr(scheduler, "_said", {})
    return own_declarations


def make(name: str = "hourly", **columns: Any) -> Schedule:
    """A schedule of ``jobs.echo``, hourly unless said otherwise, that schedulers know."""
    if not {"cron", "every"} & set(columns):
        columns["cron"] = "0 * * * *"
    row: Schedule = Schedule.objects.create(name=name, task_name="jobs.echo", **columns)
    if row.next_at is None:
        Schedule.objects.serve(row.pk)
    row.refresh_from_db()
    return row


def moments(schedule: Schedule) -> list[str]:
    """Return the moments of the slots of ``schedule``, in order."""
    slots = ScheduleSlot.objects.filter(schedule=schedule).order_by("at")
    return [at.strftime("%H:%M:%S") for at in slots.values_list("at", flat=True)]


def fresh(schedule: Schedule) -> Schedule:
    return Schedule.objects.get(pk=schedule.pk)


# Serving


def test_the_log_says_which_task_a_schedule_enqueued_or_why_none(
    database_clock: DatabaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    make(overlap=False)
    with caplog.at_level(logging.INFO, "tasks"):
        for _ in range(2):
            database_clock.advance(HOUR)
            scheduler.serve_due()

    task = Task.objects.get()
    fired = [message for message in caplog.messages if message.startswith("Schedule ")]
    assert fired == [
        f"Schedule hourly enqueued task:{task.pk} for 2030-01-01T01:00:00+00:00",
        "Schedule hourly enqueued nothing (its previous task has not ended) "
        "for 2030-01-01T02:00:00+00:00",
    ]


def test_a_moment_that_has_come_is_enqueued_as_the_row_says(
    database_clock: DatabaseClock, queues: None
) -> None:
    row = make(task_data={"a": [1]}, queue="mail", priority=7)
    assert row.next_at == START + timedelta(hours=1)
    database_clock.advance(HOUR - 0.001)
    assert scheduler.serve_due() == 0

    database_clock.advance(0.001)
    assert scheduler.serve_due() == 1

    slot = ScheduleSlot.objects.get()
    task = Task.objects.get()
    assert (slot.schedule, slot.at, slot.task, slot.run_by) == (row, row.next_at, task, "")
    assert (task.name, task.task_data, task.queue, task.priority, task.unique_key) == (
        "jobs.echo",
        {"a": [1]},
        "mail",
        7,
        None,
    )
    assert fresh(row).next_at == START + timedelta(hours=2)
    assert scheduler.serve_due() == 0


def test_an_interval_does_not_drift(database_clock: DatabaseClock) -> None:
    row = make(every=timedelta(seconds=90))
    for late in (0, 20, 70):
        database_clock.now = START + timedelta(seconds=90 * (1 + ScheduleSlot.objects.count()))
        database_clock.advance(late)
        assert scheduler.serve_due() == 1
    assert moments(row) == ["00:01:30", "00:03:00", "00:04:30"]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", []),
        ("latest", ["04:00:00"]),
        ("all", ["01:00:00", "02:00:00", "03:00:00", "04:00:00"]),
    ],
)
def test_after_hours_without_a_scheduler_the_policy_decides(
    database_clock: DatabaseClock, missed: str, expected: list[str]
) -> None:
    row = make(missed=missed)
    database_clock.advance(4.5 * HOUR)

    assert scheduler.serve_due() == len(expected)

    assert moments(row) == expected
    assert Task.objects.count() == len(expected)
    assert fresh(row).next_at == START + timedelta(hours=5)
    assert scheduler.serve_due() == 0


def test_what_was_missed_for_long_is_made_up_for_in_parts(
    database_clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    limits(slot_batch=2)
    monkeypatch.setattr(querysets.ScheduleQuerySet.serve, "__defaults__", (2,))
    limits(slot_batches=2)
    row = make(missed="all")
    database_clock.advance(7 * HOUR)

    assert [scheduler.serve_due() for _ in range(3)] == [4, 3, 0]
    assert len(set(moments(row))) == len(moments(row)) == 7


def test_a_slot_that_was_taken_is_not_taken_again(database_clock: DatabaseClock) -> None:
    """Not even when the row is set back to a moment that was served."""
    row = make()
    database_clock.advance(HOUR)
    scheduler.serve_due()
    Schedule.objects.update(next_at=row.next_at)

    assert scheduler.serve_due() == 0
    assert Task.objects.count() == ScheduleSlot.objects.count() == 1
    assert fresh(row).next_at == START + timedelta(hours=2)


@pytest.mark.parametrize(
    "columns",
    [
        {"next_at": after(timedelta(hours=1))},
        {"paused_at": DbNow()},
        {"task_name": "jobs.unheard-of"},
        {"declared": True},
    ],
    ids=["moved on", "paused", "no code for the task", "declared by other code"],
)
def test_what_changed_since_it_was_looked_at_is_not_served(columns: dict[str, Any]) -> None:
    row = make()
    Schedule.objects.update(next_at=DbNow())
    Schedule.objects.filter(pk=row.pk).update(**columns)

    assert Schedule.objects.serve(row.pk) == 0
    assert not Task.objects.exists()


@pytest.mark.parametrize("meanwhile", ["moved", "paused"])
def test_a_scheduler_that_read_an_older_row_loses(meanwhile: str) -> None:
    """As on a database that locks no rows: another has the row between the read and the write."""
    row = make()
    Schedule.objects.update(next_at=DbNow())

    def overtake() -> None:
        rows = Schedule.objects.filter(pk=row.pk)
        rows.update(next_at=after(timedelta(hours=1))) if meanwhile == "moved" else rows.pause()

    with just_before_the_update(overtake):
        assert Schedule.objects.serve(row.pk) == 0
    assert not Task.objects.exists() and not ScheduleSlot.objects.exists()


@pytest.mark.parametrize(
    "broken",
    [{"cron": "every day"}, {"queue": "closed"}, {"timezone": "Mars"}, {"task_data": [1]}],
    ids=lambda columns: next(iter(columns)),
)
def test_a_schedule_that_cannot_be_served_stops_no_other_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture, broken: dict[str, Any]
) -> None:
    bad, good = make("bad"), make("good")
    Schedule.objects.filter(pk=bad.pk).update(next_at=after(timedelta(seconds=-90)), **broken)
    Schedule.objects.filter(pk=good.pk).update(next_at=DbNow())

    assert scheduler.serve_due() == 1
    assert scheduler.serve_due() == 0

    assert ScheduleSlot.objects.get().schedule == good
    assert logged(caplog, levelno=logging.ERROR, schedule="bad") == ["schedule.failed"]


@pytest.mark.parametrize("theirs", [{"queue": "closed"}, {"task_data": {"n": 1}}], ids=str)
def test_a_schedule_of_another_release_is_left_to_that_for_a_minute(
    caplog: pytest.LogCaptureFixture, handlers: Handlers, theirs: dict[str, Any]
) -> None:
    """During a rolling deploy: the new release has a queue or a parameter more."""
    handlers["sort"] = lambda ctx: None
    row = make("theirs")
    known = {"task_name": "sort", "next_at": after(timedelta(seconds=-50))}
    Schedule.objects.filter(pk=row.pk).update(**known | theirs)

    assert scheduler.serve_due() == scheduler.serve_due() == 0
    assert logged(caplog, schedule="theirs") == ["schedule.left"]
    assert caplog.records[-1].levelno == logging.INFO

    Schedule.objects.filter(pk=row.pk).update(next_at=after(timedelta(seconds=-60)))
    assert scheduler.serve_due() == 0
    assert logged(caplog, schedule="theirs") == ["schedule.left", "schedule.failed"]


@pytest.mark.django_db(transaction=True)
def test_an_idle_look_is_one_query_and_says_when_to_come_back(
    database_clock: DatabaseClock,
) -> None:
    make(every=timedelta(seconds=3))
    make("later")
    paused = make("paused")
    Schedule.objects.filter(pk=paused.pk).update(paused_at=DbNow(), next_at=DbNow())
    with queries() as sent:
        assert scheduler.service().step() == 3.0
    assert len(sent()) == 1
    database_clock.advance(1)
    assert scheduler.service().step() == 2.0


# Overlap


def test_a_moment_is_skipped_while_the_previous_task_has_not_ended(
    database_clock: DatabaseClock,
) -> None:
    row = make(overlap=False)
    database_clock.advance(HOUR)
    assert scheduler.serve_due() == 1
    first = Task.objects.get()
    assert first.unique_key == "schedule:hourly"
    database_clock.advance(HOUR)
    grant_to(first, "w1")
    scheduler.serve_due()

    slots = ScheduleSlot.objects.order_by("at")
    assert list(slots.values_list("task", "skipped")) == [(first.pk, False), (None, True)]
    assert Schedule.objects.run_now() == 0

    end_well(first)
    database_clock.advance(HOUR)
    scheduler.serve_due()
    assert Task.objects.count() == 2
    assert fresh(row).next_at == START + timedelta(hours=4)


def test_each_schedule_shows_its_own_last_slot(database_clock: DatabaseClock) -> None:
    make("first", every=timedelta(minutes=1))
    make("second", every=timedelta(minutes=2))
    make("third", every=timedelta(days=1))
    database_clock.advance(120)
    scheduler.serve_due()

    rows: Any = Schedule.objects.with_last()
    shown = {row.name: (row.last_at, row.last_task) for row in rows}
    of_slots = {
        slot.schedule.name: (slot.at, slot.task_id)
        for slot in ScheduleSlot.objects.select_related("schedule").order_by("at")
    }
    assert shown == {**of_slots, "third": (None, None)}
    assert len(of_slots) == 2


# Operators


VERBS: dict[str, Callable[[Schedule], object]] = {
    "pause": lambda row: Schedule.objects.pause(),
    "resume": lambda row: Schedule.objects.resume(),
    "run now": lambda row: Schedule.objects.run_now(),
    "declare": lambda row: declare(every=60),
    "serve": lambda row: Schedule.objects.serve(row.pk),
}


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("verb", VERBS)
def test_a_schedule_is_locked_before_it_is_judged_and_written(verb: str) -> None:
    row = make()
    Schedule.objects.update(next_at=DbNow(), paused_at=DbNow() if verb == "resume" else None)

    with locks_and_writes() as steps:
        VERBS[verb](row)

    assert steps[0].startswith("lock") and steps[1] == "write"


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_schedule_that_another_serves_is_not_waited_for(other_session: OtherSession) -> None:
    row = make()
    Schedule.objects.update(next_at=DbNow())
    other_session.begin()
    other_session.run(lambda: Schedule.objects.select_for_update().get(pk=row.pk))

    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
        served = Schedule.objects.serve(row.pk)
        cursor.execute("RESET lock_timeout")

    other_session.commit()
    assert served == 0


def test_each_schedule_is_resumed_by_its_own_rule(database_clock: DatabaseClock) -> None:
    hourly, daily = make(), make("daily", cron="0 0 * * *")
    never = Schedule.objects.create(name="n", task_name="jobs.echo", every=timedelta(hours=1))
    Schedule.objects.pause()
    database_clock.advance(1.5 * HOUR)

    assert Schedule.objects.resume() == 3

    assert [fresh(row).next_at for row in (hourly, daily, never)] == [
        START + span for span in (timedelta(hours=2), timedelta(days=1), timedelta(hours=2.5))
    ]


def test_each_schedule_that_is_run_now_enqueues_its_own_task() -> None:
    make(task_data={"n": 1}), make("second", task_data={"n": 2})

    assert Schedule.objects.run_now() == 2

    assert sorted(task.task_data["n"] for task in Task.objects.all()) == [1, 2]


def test_a_paused_schedule_enqueues_nothing_and_goes_on_after_the_pause(
    database_clock: DatabaseClock,
) -> None:
    row = make(every=timedelta(hours=1), missed="all")
    assert Schedule.objects.pause(by="olga", reason="month end") == 1
    assert Schedule.objects.pause(by="ida", reason="x") == 0
    paused = fresh(row)
    assert (paused.paused_by, paused.reason, paused.paused_at) == ("olga", "month end", START)
    database_clock.advance(2.5 * HOUR)
    assert scheduler.serve_due() == 0

    assert (Schedule.objects.resume(), Schedule.objects.resume()) == (1, 0)
    assert scheduler.serve_due() == 0
    resumed = fresh(row)
    assert (resumed.paused_at, resumed.paused_by, resumed.reason) == (None, "", "")
    assert resumed.next_at == START + timedelta(hours=3)


def test_what_is_run_now_is_beside_the_plan(database_clock: DatabaseClock) -> None:
    row = make(task_data={"a": 1})
    Schedule.objects.pause()
    assert Schedule.objects.run_now(by="olga") == 1
    assert Schedule.objects.run_now(by="ida") == 1  # in the same tick of the clock

    slots = ScheduleSlot.objects.order_by("at")
    assert [(slot.run_by, slot.skipped) for slot in slots] == [("olga", False), ("ida", False)]
    assert slots[0].at == START
    assert [task.task_data for task in Task.objects.all()] == [{"a": 1}] * 2
    assert fresh(row).next_at == row.next_at


def test_what_is_run_now_takes_no_slot_of_the_plan(database_clock: DatabaseClock) -> None:
    row = make()
    database_clock.advance(HOUR)
    assert Schedule.objects.run_now() == 1
    assert scheduler.serve_due() == 1
    assert ScheduleSlot.objects.filter(schedule=row, run_by="").get().at == row.next_at


def test_what_has_no_code_here_is_not_run_now() -> None:
    make()
    Schedule.objects.update(task_name="jobs.unheard-of")
    assert Schedule.objects.run_now() == 0


# Declarations


def test_code_declares_by_decorator_or_by_call() -> None:
    @schedule(cron="0 3 * * *", timezone="Europe/Berlin", data={"of": (1,)}, overlap=False)
    @schedule("often", every=300)
    @handler("reports.build")
    def build(ctx: Any, of: Any = None) -> None: ...

    schedule("by name", "reports.build", every=timedelta(minutes=1), missed="all")

    assert scheduler.declare_all() == 3
    rows = {row.name: row for row in Schedule.objects.all()}
    assert set(rows) == {"reports.build", "often", "by name"}
    assert {row.task_name for row in rows.values()} == {"reports.build"}
    nightly = rows["reports.build"]
    assert (nightly.cron, nightly.timezone, nightly.overlap) == (
        "0 3 * * *",
        "Europe/Berlin",
        False,
    )
    assert nightly.task_data == {"of": [1]}
    assert (rows["by name"].every, rows["by name"].missed) == (timedelta(minutes=1), "all")
    assert all(row.declared and row.next_at and row.declared_at for row in rows.values())
    assert scheduler.declare_all() == 0


def declare(**columns: Any) -> int:
    schedule("hourly", "jobs.echo", **columns)
    return scheduler.declare_all()


@pytest.fixture
def redeclare(declared: dict[str, Declaration]) -> Callable[..., int]:
    """Declares the schedule as a new release does, whose code is all that there is."""

    def redeclare(**columns: Any) -> int:
        declared.clear()
        return declare(**columns)

    return redeclare


def test_a_rule_that_code_changed_is_begun_anew_and_other_changes_keep_the_plan(
    database_clock: DatabaseClock, redeclare: Callable[..., int]
) -> None:
    redeclare(every=600)
    database_clock.advance(500)
    assert redeclare(every=600, priority=3) == 1
    row = Schedule.objects.get()
    assert (row.priority, row.next_at) == (3, START + timedelta(seconds=600))

    assert redeclare(every=1000, priority=3) == 1
    assert Schedule.objects.get().next_at == START + timedelta(seconds=1500)


def test_code_takes_over_a_schedule_of_its_name(
    caplog: pytest.LogCaptureFixture, redeclare: Callable[..., int]
) -> None:
    caplog.set_level(logging.INFO)
    make(every=timedelta(hours=1))
    assert redeclare(every=3600) == 1
    assert Schedule.objects.get().declared
    assert logged(caplog) == ["schedule.declared"]

    assert (redeclare(every=3600), redeclare(every=60)) == (0, 1)
    assert logged(caplog) == ["schedule.declared"] * 2


def test_what_left_the_code_is_kept_and_served_by_old_code_only(
    database_clock: DatabaseClock, declared: dict[str, Declaration]
) -> None:
    declare(every=60)
    old = dict(declared)
    declared.clear()
    scheduler.declare_all()
    database_clock.advance(60)

    assert scheduler.serve_due() == 0  # new code
    assert Schedule.objects.get().declared
    declared.update(old)
    assert scheduler.serve_due() == 1


def test_a_declaration_that_another_process_stores_first_is_no_error() -> None:
    with before_a_statement_with("INSERT INTO", scheduler.declare_all):
        declare(every=60)
    assert Schedule.objects.get().declared


def test_a_declaration_is_confirmed_while_code_that_has_it_runs(
    database_clock: DatabaseClock, declared: dict[str, Declaration]
) -> None:
    declare(every=60)
    make("own")
    for minutes, confirmed in ((29, 0), (2, 1), (1, 0)):
        database_clock.advance(minutes * 60)
        assert Schedule.objects.confirm() == confirmed
    database_clock.advance(HOUR)
    declared.clear()
    assert Schedule.objects.confirm() == 0


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({}, InvalidSchedule),
        ({"cron": "* * * * *", "every": 5}, InvalidSchedule),
        ({"cron": "61 * * * *"}, InvalidSchedule),
        ({"cron": "* * * * *", "timezone": "Mars"}, InvalidSchedule),
        ({"every": 5, "missed": "some"}, InvalidSchedule),
        ({"every": 5, "priority": 40_000}, InvalidSchedule),
        ({"every": 5, "data": {"a": object()}}, NotSerializable),
        ({"every": 5, "name": "n" * 191}, InvalidSchedule),
        ({"every": 5, "name": ""}, InvalidResource),
        ({"every": 5, "queue": "a\n"}, InvalidResource),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(
    columns: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        schedule(columns.pop("name", "x"), "jobs.echo", **columns)
    assert not declarations.declared()


def test_a_name_is_of_one_schedule() -> None:
    schedule("x", "jobs.echo", every=5)
    schedule("x", "jobs.echo", every=5)  # the module was read twice
    with pytest.raises(InvalidSchedule, match="'x' is already"):
        schedule("x", "jobs.echo", every=6)


def test_the_decorator_belongs_above_the_handler() -> None:
    with pytest.raises(InvalidSchedule, match="above @handler"):

        @handler("x")
        @schedule(every=5)
        def function(ctx: Any) -> None: ...


def test_checks_find_data_that_the_handler_does_not_take() -> None:
    schedule("x", "sample.sleep", every=5, data={"seconds": 1})
    (message,) = check_settings()
    assert (message.id, message.msg) == (
        "leasing_tasks.E028",
        "The schedule 'x' cannot enqueue 'sample.sleep': sleep(ctx, sleep_duration_seconds) does "
        "not take this data: 'sleep_duration_seconds' is missing; 'seconds' is unknown.",
    )


# Housekeeping


@pytest.mark.django_db(transaction=True)
def test_old_slots_are_pruned_now_and_then_but_for_the_last(database_clock: DatabaseClock) -> None:
    row, other = make(), make("other")
    day = timedelta(days=1)
    for schedule_, days in ((row, (9, 8, 6, 1)), (other, (10, 9))):
        for ago in days:
            ScheduleSlot.objects.create(schedule=schedule_, at=START - ago * day)

    assert ScheduleSlot.objects.prune(limit=1) == 1
    keeping = scheduler.housekeeping()
    for pause in (keeping.starts_in, keeping.step()):
        assert 0.8 * scheduler.KEEP_HOUSE_EVERY <= pause <= scheduler.KEEP_HOUSE_EVERY

    left = ScheduleSlot.objects.order_by("at").values_list("schedule__name", "at")
    assert [(name, (START - at).days) for name, at in left] == [
        ("other", 9),
        ("hourly", 6),
        ("hourly", 1),
    ]


def test_a_slot_is_unique_and_one_that_was_skipped_has_no_task() -> None:
    row = make()
    Schedule.objects.run_now()
    slot = ScheduleSlot.objects.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        ScheduleSlot.objects.create(schedule=row, at=slot.at)
    with pytest.raises(IntegrityError), transaction.atomic():
        ScheduleSlot.objects.update(skipped=True)
    Task.objects.all().delete()
    assert ScheduleSlot.objects.get().task is None


# The loop


@pytest.mark.django_db(transaction=True)
def test_the_scheduler_goes_on_whatever_happens(caplog: pytest.LogCaptureFixture) -> None:
    found: list[int] = []
    serving = scheduler.service(lambda: found.append(1))
    for level, error in (
        (logging.WARNING, OperationalError("gone")),
        (logging.ERROR, ValueError("odd")),
    ):
        make(error.args[0])
        Schedule.objects.update(next_at=DbNow())
        with refusing(error, lambda sql, params: True):
            assert serving.step() > 0
        assert logged(caplog, levelno=level)[:1] == ["schedules.failed"]

        assert serving.step() == 0.0
        assert serving.step() > scheduler.PATIENCE
    assert found == [1, 1]


@pytest.mark.django_db(transaction=True)
def test_schedules_are_declared_until_that_succeeds() -> None:
    schedule("hourly", "jobs.echo", every=HOUR)
    serving = scheduler.service()

    with refusing(OperationalError("gone"), lambda sql, params: True):
        serving.step()
    assert serving.step() == scheduler.CHECK_EVERY
    Schedule.objects.get().delete()
    assert serving.step() == scheduler.CHECK_EVERY
    assert not Schedule.objects.exists()


# Many at once


@pytest.fixture
def crowd() -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(30)


@pytest.mark.django_db(transaction=True)
def test_of_four_schedulers_one_serves_each_moment(
    crowd: list[threading.Thread], database_clock: DatabaseClock
) -> None:
    database_clock.advance(HOUR / 2)  # and stands there: no hour ends meanwhile
    for number in range(6):
        make(f"schedule-{number}", missed="all")
    Schedule.objects.update(next_at=after(timedelta(hours=-5)))
    schedule("declared", "jobs.echo", every=60)
    together = threading.Barrier(4, timeout=30)
    taken: list[int] = []
    errors: list[Exception] = []

    def serve() -> None:
        try:
            together.wait()
            scheduler.declare_all()
            taken.append(sum(scheduler.serve_due() for _ in range(3)))
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    crowd += [threading.Thread(target=serve) for _ in range(4)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(30)

    assert errors == []
    slots = Counter(ScheduleSlot.objects.values_list("schedule__name", flat=True))
    assert set(slots.values()) == {6} and len(slots) == 6
    assert Schedule.objects.filter(name="declared").count() == 1
    assert sum(taken) == Task.objects.count() == 36
    assert ScheduleSlot.objects.values("task").distinct().count() == 36
