"""Samples: true over several processes, dated by the database, and cheap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.functions import DbNow
from leasing.holding.keeper import Keeper, keeper
from leasing.models import Lease
from tasks.checks.settings import check_settings
from tasks.dashboard.charts import series
from tasks.exceptions import GiveUp
from tasks.maintenance import sampling
from tasks.maintenance.counting import (
    RESOURCE,
    Activity,
    Counted,
    Slot,
    _claimed,
    count,
    depths,
    percentile,
)
from tasks.maintenance.sampling import Sampler
from tasks.models import Queue, Sample, Task, TaskAttempt
from tasks.registry import Kind
from tests.factories import claimed, make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import FakeClock, expire
from tests.limits import Limits

pytestmark = pytest.mark.django_db


BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """The database's clock, moved by hand."""

    def __init__(self, clock: DatabaseClock) -> None:
        self._clock = clock

    @property
    def now(self) -> datetime:
        return self._clock.now

    def advance(self, seconds: float) -> None:
        stamp()
        self._clock.advance(seconds)


def stamp() -> None:
    """Date by the stopped clock what a server's own default has dated by its own."""
    for rows, column in (
        (Task.objects.all(), "created_at"),
        (Task.objects.all(), "scheduled_at"),
        (TaskAttempt._base_manager.all(), "ended_at"),
    ):
        rows.filter(**{f"{column}__lt": BEGIN}).update(**{column: DbNow()})


@pytest.fixture(autouse=True)
def clock(database_clock: DatabaseClock) -> Clock:
    """Stopped two seconds into a slot."""
    database_clock.advance(2)
    return Clock(database_clock)


def counted(clock: Clock, queue: str = "default") -> dict[str, Any]:
    """Return the sample of the present slot, as it will be."""
    stamp()
    return count(Slot.before(clock.now + timedelta(seconds=10))).get(queue, {})


def run(task: Task, *, holder: str = "ann") -> Task:
    stamp()
    return claimed(task, holder)


def sampled() -> list[tuple[int, str]]:
    return list(Sample.objects.order_by("slot", "queue").values_list("slot", "queue"))


# Counting


def test_each_end_of_a_task_is_counted_where_it_came(clock: Clock) -> None:
    Task.objects.complete(run(make_task()), {})
    Task.objects.fail(run(make_task()), GiveUp("no"))
    Task.objects.fail(run(make_task()), ValueError("again"))
    Task.objects.filter(pk=make_task().pk).cancel()
    Task.objects.give_back(run(make_task()), "stopped")
    expire(run(make_task()))
    Task.objects.recover()

    found = counted(clock)

    assert {name: found[name] for name in ("enqueued", "claimed")} == {"enqueued": 6, "claimed": 5}
    ends = ("completed", "failed", "retried", "cancelled", "recovered")
    assert [found[name] for name in ends] == [1, 1, 1, 1, 1]
    assert (found["expirations"], found["releases"]) == (1, 4)


def mail() -> Task:
    task = make_task()
    Task.objects.filter(pk=task.pk).update(name="mail.send")
    return Task.objects.get(pk=task.pk)


def test_attempts_are_counted_by_handler_with_their_durations(clock: Clock) -> None:
    task = make_task()
    clock.advance(2)
    task = run(task)
    clock.advance(3)
    Task.objects.complete(task, {})
    Task.objects.fail(run(mail()), GiveUp("no"))
    Task.objects.fail(run(mail()), ValueError("again"))
    Task.objects.give_back(run(mail()), "stopped")
    expire(run(make_task()))
    Task.objects.recover()

    handlers = counted(clock)["handlers"]

    seconds = {
        kind: [round(Sample.BASE ** int(each), 1) for each in handlers[task.name][kind]]
        for kind in ("runs", "waits")
    }
    assert seconds == {"runs": [3.0], "waits": [2.1]}
    assert handlers[task.name]["failures"] == 1
    assert handlers["mail.send"] == {"failures": 2, "runs": {}, "waits": {}}


def test_of_many_successes_some_tell_the_durations_evenly(clock: Clock, limits: Limits) -> None:
    limits(waits=2)
    made: list[Any] = make_tasks(4)
    for task in made:
        Task.objects.complete(run(task), {})

    (handler,) = counted(clock)["handlers"].values()
    assert (sum(handler["runs"].values()), sum(handler["waits"].values())) == (4, 4)


def test_handlers_whose_tasks_take_turns_are_all_among_those_that_tell(
    clock: Clock, limits: Limits
) -> None:
    limits(waits=2)
    for task in [make() for _ in range(2) for make in (make_task, mail)]:
        Task.objects.complete(run(task), {})

    handlers = counted(clock)["handlers"].values()
    assert [sum(handler["runs"].values()) for handler in handlers] == [2, 2]


def test_what_another_slot_had_is_not_counted_again(clock: Clock) -> None:
    Task.objects.fail(run(make_task()), ValueError("again"))
    Task.objects.complete(run(make_task()), {})
    expire(run(make_task()))
    Task.objects.recover()
    Lease.objects.release(Lease.objects.acquire("crane", holder="ann"))

    clock.advance(8)

    assert counted(clock) == dict.fromkeys(counted(clock), 0)
    assert counted(clock, "") == {"expirations": 0, "releases": 0}


def test_a_slot_begins_with_its_first_moment_and_ends_before_the_next(
    clock: Clock,
) -> None:
    clock.advance(8)
    Task.objects.complete(run(make_task()), {})

    assert counted(clock)["completed"] == 1
    assert count(Slot.before(clock.now)).get("default", {}).get("completed") is None


def test_a_task_that_was_claimed_twice_counts_twice(clock: Clock) -> None:
    task = make_task()
    Task.objects.give_back(run(task), "stopped")
    run(Task.objects.get(pk=task.pk))

    assert counted(clock)["claimed"] == 2


def test_an_attempt_that_failed_for_good_is_no_retry(clock: Clock) -> None:
    task = make_task(max_attempts=2)
    Task.objects.fail(run(task), ValueError("again"))
    Task.objects.filter(pk=task.pk).update(scheduled_at=clock.now)
    Task.objects.fail(run(Task.objects.get(pk=task.pk)), ValueError("over"))

    found = counted(clock)

    assert (found["retried"], found["failed"]) == (1, 1)


def test_queues_are_counted_apart(clock: Clock, queues: None) -> None:
    Task.objects.complete(run(make_task(queue="mail")), {})
    make_task()

    assert counted(clock, "mail")["completed"] == 1
    assert "completed" not in counted(clock)


def test_named_leases_are_counted_by_their_events(clock: Clock) -> None:
    Lease.objects.release(Lease.objects.acquire("crane", holder="ann"))
    Lease.objects.acquire("berth", holder="ann", ttl=1)
    Lease.objects.acquire("quay", holder="ann")
    Lease.objects.filter(resource="quay").revoke()
    clock.advance(2)
    Lease.objects.acquire("berth", holder="bob")

    assert counted(clock, "") == {"expirations": 1, "releases": 2}


def test_a_wait_ends_with_the_claim_and_begins_when_it_was_due(clock: Clock) -> None:
    late = make_task()
    later = make_task(scheduled_at=clock.now + timedelta(seconds=3))
    clock.advance(4)
    for task in (late, later, make_task(), make_task()):
        run(task)

    found = counted(clock)

    assert (found["wait_p50"], found["wait_p95"]) == (0.0, 4.0)


def test_what_failed_meanwhile_or_was_taken_back_tells_no_wait(clock: Clock) -> None:
    Task.objects.fail(run(make_task()), ValueError("due in the future"))
    taken = run(make_task())
    clock.advance(5)
    Task.objects.filter(pk=taken.pk).revoke()
    run(Task.objects.get(pk=taken.pk))

    assert "wait_p50" not in counted(clock)


@pytest.mark.parametrize(
    ("lengths", "share", "found"),
    [([1.0], 0.5, 1.0), ([1, 2], 0.5, 1), ([1, 2, 3], 0.5, 2), (list(range(1, 101)), 0.95, 95)],
)
def test_a_percentile_is_one_of_the_lengths(lengths: Any, share: float, found: float) -> None:
    assert percentile(lengths, share) == found


def test_depths_tell_what_is_due_from_what_is_not_and_look_at_so_many(
    limits: Limits, queues: None, clock: Clock
) -> None:
    limits(count_cap=3)
    make_tasks(2)
    make_tasks(9, state="scheduled")
    make_task(kind=Kind.COROUTINE.number)
    make_task(state="running", queue="mail")

    stamp()
    clock.advance(7)

    with CaptureQueriesContext(connection) as captured:
        found = depths(["default", "mail"], clock.now)

    assert found["default"] == {"ready": 3, "scheduled": 2, "running": 0, "oldest": 7.0}
    assert found["mail"] == {"ready": 0, "scheduled": 0, "running": 1, "oldest": 0.0}
    assert len(captured) == 2 * len(Kind) + 1
    assert all("LIMIT 4" in query["sql"] for query in captured)
    Queue.objects.pause("default", by="olga", reason="month end")
    assert depths(["default"], clock.now)["default"]["oldest"] == 0.0


def test_a_task_that_ends_while_its_claim_is_counted_counts_once(clock: Clock) -> None:
    task = make_task(state="running")
    slot = Slot.before(clock.now + timedelta(seconds=Sample.SLOT))
    sent: list[str] = []

    def as_it_ends(execute: Any, sql: str, *rest: Any) -> Any:
        sent.append(sql)
        if len(sent) == 2:
            Task.objects.complete(task)
        return execute(sql, *rest)

    counted: Counted = defaultdict(lambda: defaultdict(int))
    with connection.execute_wrapper(as_it_ends):
        assert _claimed(slot, counted) == 1
    assert counted["default"]["claimed"] == 1


def test_counting_asks_as_often_however_much_there_is(clock: Clock) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            counted(clock)
        assert all("OFFSET" not in query["sql"] for query in captured)
        return len(captured)

    run(make_task())
    few = queries()
    made: list[Any] = make_tasks(10)
    for task in made:
        Task.objects.fail(run(task), ValueError("again"))

    assert queries() == few


# Writing


def test_the_slots_that_are_over_are_written_once(clock: Clock) -> None:
    clock.advance(10)  # two seconds of the next: LAG has just passed
    assert sampling.take() == 1
    assert sampling.take() == 0

    ended = Slot.before(clock.now).number
    assert sampled() == [(ended, ""), (ended, "default")]


def test_a_slot_waits_until_what_was_begun_in_it_is_committed(clock: Clock) -> None:
    clock.advance(9)

    sampling.take()

    assert {slot for slot, _ in sampled()} == {Slot.before(clock.now).number - 10}


def test_a_successor_makes_up_for_what_nobody_wrote_but_not_for_depths(
    clock: Clock,
) -> None:
    sampling.take()
    Task.objects.complete(run(make_task()), {})
    clock.advance(30)

    assert sampling.take() == 3
    rows = Sample.objects.filter(queue="default").order_by("slot")
    assert list(rows.values_list("completed", "ready")) == [(0, 0), (1, None), (0, None), (0, 0)]


def test_after_a_long_absence_only_the_last_minutes_are_made_up_for(clock: Clock) -> None:
    sampling.take()
    clock.advance(86_400)

    assert sampling.take() == sampling.MAX_MISSED
    assert Sample.objects.filter(queue="default").count() == 1 + sampling.MAX_MISSED


def test_writing_a_slot_again_changes_nothing_and_keeps_what_workers_added(
    clock: Clock,
) -> None:
    keeper = Keeper(threads=False)
    tally = sampling.Tally(keeper)
    keeper.renewals = 4
    tally.add()
    Task.objects.complete(run(make_task()), {})
    slot = Slot.before(clock.now + timedelta(seconds=10))
    clock.advance(10)

    for _ in range(2):
        rows = sampling.samples(slot, Activity.of_now(), ["default"], is_newest=True)
        sampling.store(rows)

    assert Sample.objects.get(slot=slot.number, queue="").renewals == 4
    assert Sample.objects.get(slot=slot.number, queue="default").completed == 1


@pytest.mark.django_db(transaction=True)
def test_few_samples_are_one_statement_and_of_many_all_or_none_are_stored() -> None:
    many = [Sample(queue=f"q{number}", slot=10) for number in range(60)]

    without_slot: Any = Sample()
    with pytest.raises(IntegrityError):
        sampling.store([*many, without_slot])
    assert not Sample.objects.exists()
    assert len(queries(lambda: sampling.store(many[:50]))) == 1
    sampling.store(many)
    assert Sample.objects.count() == 60


def test_a_queue_that_no_setting_names_is_sampled_too(clock: Clock) -> None:
    Queue.objects.create(name="old")

    sampling.take()

    assert "old" in {queue for _, queue in sampled()}


def test_renewals_of_several_workers_add_up(clock: Clock) -> None:
    keepers = [Keeper(threads=False), Keeper(threads=False)]
    tallies = [sampling.Tally(keeper) for keeper in keepers]
    for each in keepers:
        each.renewals += 3

    assert [tally.add() for tally in tallies] == [3, 3]
    assert [tally.add() for tally in tallies] == [0, 0]
    assert Sample.objects.get().renewals == 6


def test_renewals_alone_do_not_make_a_slot_look_sampled(clock: Clock) -> None:
    keeper = Keeper(threads=False)
    tally = sampling.Tally(keeper)
    keeper.renewals = 1
    tally.add()
    clock.advance(10)
    assert sampling.take() == 1

    Sample.objects.exclude(queue="").delete()
    clock.advance(-10)
    chart = series(clock.now - timedelta(seconds=2), clock.now + timedelta(seconds=8))[0]

    assert chart.lines[0].values == [None]


def test_samples_are_kept_for_a_day_or_as_the_settings_say(
    clock: Clock, settings: Settings
) -> None:
    sampling.take()
    clock.advance(86_400 - 10)
    assert sampling.prune() == 0

    clock.advance(30)
    settings.TASK_QUEUE = {"SAMPLE_RETENTION": None}
    assert sampling.prune() == 0
    settings.TASK_QUEUE = {}
    assert sampling.prune() == 2


HAPPENINGS: dict[str, tuple[str, Callable[[], object]]] = {
    "enqueued": ("enqueued", make_task),
    "claimed": ("claimed", lambda: run(Task.objects.get())),
    "completed": ("completed", lambda: Task.objects.complete(run(Task.objects.get()), {})),
    "failed": ("failed", lambda: Task.objects.fail(run(Task.objects.get()), GiveUp("no"))),
    "cancelled": ("cancelled", lambda: Task.objects.all().cancel()),
    "given back": ("releases", lambda: Task.objects.give_back(run(Task.objects.get()), "stopped")),
    "given back unbegun": (
        "claimed",
        lambda: Task.objects.give_back(run(Task.objects.get()), "stopped", begun=False),
    ),
    "pending": ("ready", bool),
    "running": ("running", bool),
}


@pytest.mark.parametrize("what", HAPPENINGS)
def test_a_slot_in_which_anything_happened_is_not_quiet(what: str, clock: Clock) -> None:
    if what != "enqueued":
        task = make_task()
        if what == "running":
            claimed(task, "ann")
        clock.advance(30)
        sampling.take()
    column, happen = HAPPENINGS[what]
    happen()
    clock.advance(10)

    sampling.take()

    newest = Sample.objects.order_by("slot").filter(queue="default").last()
    assert getattr(newest, column) == 1


def test_a_lease_of_its_own_makes_a_slot_unquiet_too(clock: Clock) -> None:
    sampling.take()
    clock.advance(30)
    Lease.objects.release(Lease.objects.acquire("crane", holder="ann"))
    Lease.objects.release(Lease.objects.acquire(RESOURCE, holder="ann"))
    clock.advance(10)

    sampling.take()

    assert Sample.objects.order_by("slot").filter(queue="").last().releases == 1  # type: ignore[union-attr]


def test_that_somebody_samples_is_nothing_that_happened(clock: Clock) -> None:
    Lease.objects.release(Lease.objects.acquire(RESOURCE, holder="ann"))
    clock.advance(10)

    over = Slot.before(clock.now)
    assert Activity.of_now().is_quiet(over)
    assert count(over)[""] == {"expirations": 0, "releases": 0}


@pytest.mark.parametrize("slots", [1, 2])
def test_quiet_slots_are_a_question_and_an_insert(
    slots: int, clock: Clock, django_assert_num_queries: Any
) -> None:
    Task.objects.complete(run(make_task()), {})
    clock.advance(30)
    sampling.take()
    clock.advance(10 * slots)

    with django_assert_num_queries(2):
        assert sampling.fill(Activity.of_now(), ["default", "mail"]) == slots

    newest = Sample.objects.order_by("slot", "queue").last()
    assert newest is not None and (newest.queue, newest.ready, newest.claimed) == ("mail", 0, 0)


# Who samples


@pytest.fixture
def holders(holder_clock: FakeClock) -> FakeClock:
    """The samplers' own clock."""
    return holder_clock


def queries(call: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    return [query["sql"] for query in captured]


@pytest.mark.parametrize(
    ("seconds", "renewed"),
    [(10, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2]), (20, [0, 0, 1, 1, 1, 2]), (17, [0, 0, 0, 1, 1])],
)
def test_the_sampler_renews_its_lease_in_time_and_not_each_turn(
    seconds: int, renewed: list[int], clock: Clock, holders: FakeClock
) -> None:
    sampler = Sampler()
    sampler.turn()
    renewals = []
    for _ in renewed:
        clock.advance(seconds)
        holders.advance(seconds)
        assert Lease.objects.active().exists()
        sampler.turn()
        renewals.append(Lease.objects.get().renewals)

    assert renewals == renewed
    sampler.end()
    assert not Lease.objects.active().exists()


def test_a_turn_ends_shortly_after_the_next_slot_is_over(clock: Clock, holders: FakeClock) -> None:
    clock.advance(3)

    pause = Sampler().turn()

    # Five seconds into a slot, of which two are for what is committed late.
    assert pause == pytest.approx(10 - 3 + sampling.LATE)


def test_slots_that_are_written_together_have_their_depths(
    clock: Clock, holders: FakeClock
) -> None:
    sampler = Sampler()
    for _ in range(3):
        sampler.turn()
        clock.advance(20)

    sampler.turn()

    rows = Sample.objects.filter(queue="default").order_by("slot")
    assert list(rows.values_list("ready", "running")) == [(0, 0)] * 7


def test_another_samples_when_the_sampler_is_gone_and_it_hears_of_that(
    clock: Clock, holders: FakeClock
) -> None:
    first, second = Sampler(), Sampler()
    first.turn()
    clock.advance(sampling.TTL + 1)
    holders.advance(sampling.TTL + 1)

    second.turn()

    first.tick()
    assert Lease.objects.get().grants == 2
    assert len(queries(first.turn)) == 1


def test_who_does_not_sample_adds_its_renewals_all_the_same(clock: Clock) -> None:
    sampler = Sampler()
    keeper.renewals += 3
    Lease.objects.acquire(RESOURCE, holder="another")

    sampler.turn()

    assert Sample.objects.get().renewals >= 3


def test_nobody_samples_where_the_settings_say_so(settings: Settings) -> None:
    settings.TASK_QUEUE = {"SAMPLES": False}

    assert queries(lambda: Sampler().tick()) == []


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("SAMPLES", "no", "leasing_tasks.E013"), ("SAMPLE_RETENTION", -1, "leasing_tasks.E014")],
)
def test_settings_that_mean_nothing_are_errors(
    settings: Settings, name: str, value: Any, code: str
) -> None:
    settings.TASK_QUEUE = {name: value}

    assert code in {message.id for message in check_settings()}
