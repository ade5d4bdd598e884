"""Tasks that ended long ago are deleted, by age and state, in small batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.functions import EPOCH, DbNow, after
from leasing.models import OnceKey
from leasing.runtime import services
from tasks.checks import settings as checks
from tasks.maintenance import housekeeping, recovery
from tasks.models import OutboxMessage, Schedule, ScheduleSlot, Task, TaskAttempt, TaskStep
from tasks.querysets import operator
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession
from tests.limits import Limits
from tests.press.models import Receipt
from tests.tasks.support import Reported

pytestmark = pytest.mark.django_db

ENDED = ("succeeded", "failed", "given_up", "cancelled")
NOT_ENDED = ("ready", "scheduled", "running", "stuck", "retrying", "recovered", "returned")
DAY = timedelta(days=1)


def ended(state: str = "succeeded", days: float = 10, **columns: Any) -> Task:
    """A task that ended so many days ago."""
    task = make_task(state=state)
    Task.objects.filter(pk=task.pk).update(processed_at=after(-days * DAY), **columns)
    return task


def left() -> set[int]:
    return set(Task.objects.values_list("pk", flat=True))


@pytest.mark.parametrize("state", ENDED)
def test_a_task_is_deleted_once_it_ended_so_long_ago(
    state: str, database_clock: DatabaseClock
) -> None:
    database_clock.advance(0.5)
    ended_at = make_task(state=state).processed_at
    assert ended_at is not None

    database_clock.now = ended_at + DAY - timedelta(milliseconds=1)
    assert Task.objects.prune(DAY) == 0

    database_clock.now = ended_at + DAY
    assert Task.objects.prune(DAY) == 1
    assert left() == set()


@pytest.mark.parametrize("state", NOT_ENDED)
def test_what_has_not_ended_is_kept_however_old_it_is(
    state: str, database_clock: DatabaseClock
) -> None:
    task = make_task(state=state)
    database_clock.advance(365 * 86_400)

    assert Task.objects.prune(timedelta(0)) == 0
    assert left() == {task.pk}


def test_a_task_that_keeps_its_unique_key_is_kept_until_the_window_is_over() -> None:
    task = ended(unique_key="k", unique_for="window", unique_until=after(DAY))
    assert Task.objects.prune(DAY) == 0

    Task.objects.filter(pk=task.pk).update(unique_until=DbNow())
    assert Task.objects.prune(DAY) == 1


def test_what_hangs_on_a_task_goes_with_it_by_set() -> None:
    tasks = [ended("failed") for _ in range(5)]
    kept = ended("failed", days=0)
    schedule = Schedule.objects.create(name="n", task_name="sample.sleep", every=DAY)
    for number, task in enumerate([*tasks, kept]):
        TaskStep.objects.create(task=task, name="one")
        ScheduleSlot.objects.create(schedule=schedule, at=after(number * DAY), task=task)

    with CaptureQueriesContext(connection) as queries:
        assert Task.objects.prune(DAY) == 5

    assert len(queries) <= 14
    assert not any('"task_data"' in query["sql"] for query in queries)
    assert left() == {kept.pk}
    assert [each.task_id for each in TaskAttempt.objects.all()] == [kept.pk]
    assert [each.task_id for each in TaskStep.objects.all()] == [kept.pk]
    assert [each.task_id for each in ScheduleSlot.objects.order_by("id")] == [None] * 5 + [kept.pk]


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_task_that_somebody_has_locked_is_passed_over(other_session: OtherSession) -> None:
    locked, free = ended(), ended()
    other_session.begin()
    other_session.run(lambda: Task.objects.select_for_update().get(pk=locked.pk))

    assert Task.objects.prune(DAY) == 1
    assert left() == {locked.pk}
    assert free.pk not in left()


# What others refer to


def protected(days: float = 10) -> Task:
    """A task that a row of another app protects."""
    task = ended(days=days)
    Receipt.objects.create(task=task)
    return task


def protected_by_its_attempt(days: float = 10) -> Task:
    """A task with an attempt, which would go with it, that a row of another app protects."""
    task = ended("failed", days=days)
    Receipt.objects.create(attempt=task.attempt_set.get())
    return task


@pytest.mark.parametrize("make", [protected, protected_by_its_attempt])
def test_a_task_that_another_row_protects_keeps_no_other(make: Callable[..., Task]) -> None:
    kept = [make(days=20), make(days=10)]
    for days in (30, 15, 8, 5):
        ended(days=days)

    assert Task.objects.prune(DAY, limit=3) == 3
    assert Task.objects.prune(DAY, limit=3) == 1
    assert left() == {task.pk for task in kept}

    Receipt.objects.all().delete()
    assert Task.objects.prune(DAY) == 2


def test_the_housekeeping_goes_on_past_what_is_protected() -> None:
    kept = [protected(days=20), protected_by_its_attempt(days=100)]
    ended(), ended("failed", days=99)

    pruned = housekeeping.prune(batch=1, pause=0)

    assert pruned == {"succeeded": 1, "failed": 1, "cancelled": 0}
    assert left() == {task.pk for task in kept}


@pytest.mark.parametrize("make", [protected, protected_by_its_attempt])
def test_an_operator_discards_what_is_not_protected(
    make: Callable[..., Task], reported: Reported
) -> None:
    kept = [make(), make()]
    gone = [ended(), ended("failed")]
    reported.clear()

    assert Task.objects.discard(by="olga") == 2

    assert left() == {task.pk for task in kept}
    assert [(name, key) for name, key, _ in reported] == [("discarded", task.pk) for task in gone]


def test_a_message_that_is_protected_keeps_no_other() -> None:
    messages = OutboxMessage.objects.bulk_create(
        OutboxMessage(topic="t", bucket=0, published_at=after(-days * DAY)) for days in (30, 20)
    )
    Receipt.objects.create(message=messages[0])

    assert OutboxMessage.objects.prune(DAY, limit=1) == 1
    assert OutboxMessage.objects.get() == messages[0]

    OutboxMessage.objects.update(published_at=None)
    other = OutboxMessage.objects.create(topic="t", bucket=0)
    assert OutboxMessage.objects.discard() == 1
    assert not OutboxMessage.objects.filter(pk=other.pk).exists()


# By the settings


def test_each_state_is_kept_as_long_as_the_settings_say(settings: Settings) -> None:
    settings.TASK_QUEUE = {"RETENTION": {"succeeded": 3600, "failed": None}}
    kept = [ended(days=0.04), ended("failed", days=1000), ended("cancelled", days=6)]
    for state, days in [("succeeded", 0.05), ("cancelled", 8)]:
        ended(state, days=days)

    assert housekeeping.prune(pause=0) == {"succeeded": 1, "cancelled": 1}
    assert left() == {task.pk for task in kept}


def test_without_a_setting_failed_tasks_are_kept_for_longest() -> None:
    kept = [ended("failed", days=89), ended("succeeded", days=6.9), ended("cancelled", days=6.9)]
    for state, days in [("failed", 91), ("succeeded", 7.1), ("cancelled", 7.1)]:
        ended(state, days=days)

    done = housekeeping.prune(pause=0)

    assert done == {"succeeded": 1, "cancelled": 1, "failed": 1}
    assert left() == {task.pk for task in kept}


def test_a_task_with_an_idempotency_key_is_kept_as_long_as_a_failed_one() -> None:
    key = {"idempotency_key": "k"}
    kept = ended(days=89, **key)
    for days in (8, 88, 91):
        ended(days=days)

    assert housekeeping.prune(batch=1, pause=0)["succeeded"] == 3
    assert left() == {kept.pk}
    Task.objects.update(processed_at=after(-91 * DAY))
    assert housekeeping.prune({"failed": DAY}, pause=0) == {"failed": 0}
    assert housekeeping.prune(pause=0)["succeeded"] == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"keyed": 95 * DAY}, True),
        ({"keyed": None}, True),
        ({"failed": None}, True),
        ({"succeeded": None}, True),
        ({"succeeded": 95 * DAY}, True),
        ({"failed": 3 * DAY}, False),
        ({"failed": 3 * DAY, "keyed": 4 * DAY}, False),
    ],
)
def test_what_the_settings_say_of_keys_and_of_their_state_is_kept_for_the_longer_time(
    given: dict[str, Any], kept: bool, settings: Settings
) -> None:
    settings.TASK_QUEUE = {"RETENTION": given}
    task = ended(days=92, idempotency_key="k")

    housekeeping.prune(pause=0)

    assert left() == ({task.pk} if kept else set())
    assert checks.check_settings() == []


def test_the_days_of_the_command_are_not_those_of_keys() -> None:
    kept = ended(days=30, idempotency_key="k")
    ended(days=30)

    call_command("prune_tasks", "--days", "1", stdout=StringIO())

    assert left() == {kept.pk}


class Pauses(threading.Event):
    """Stops after so many pauses."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.waited: list[float | None] = []
        self.stop_after = stop_after

    def __bool__(self) -> bool:  # as ``hold.lost``
        return self.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == self.stop_after:
            self.set()
        return self.is_set()


def test_there_is_a_pause_between_two_batches() -> None:
    for _ in range(5):
        ended()
    pauses = Pauses()

    assert housekeeping.prune(batch=2, pause=0.3, stopping=pauses)["succeeded"] == 5
    assert pauses.waited == [0.3, 0.3]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"RETENTION": {"done": 5}}, "leasing_tasks.E010"),
        ({"RETENTION": {"succeeded": "a week"}}, "leasing_tasks.E010"),
        ({"RETENTION": {"succeeded": -1}}, "leasing_tasks.E010"),
        ({"RETENTION": {"failed": -DAY}}, "leasing_tasks.E010"),
        ({"RETENTION": 7}, "leasing_tasks.E010"),
        ({"RETENTION": {"keyed": "a week"}}, "leasing_tasks.E010"),
        ({"RETENTION": {"keyed": 89 * DAY}}, "leasing_tasks.E034"),
        ({"RETENTION": {"failed": None, "keyed": 99 * DAY}}, "leasing_tasks.E034"),
        ({"PRUNE_EVERY": 1}, "leasing_tasks.E009"),
        ({"PRUNE_EVERY": True}, "leasing_tasks.E009"),
        ({"EXAMINE_EVERY": None}, "leasing_tasks.E009"),
        ({"EXAMINE_EVERY": "often"}, "leasing_tasks.E009"),
    ],
)
def test_a_retention_that_is_out_of_bounds_is_refused(
    given: dict[str, Any], code: str, settings: Settings
) -> None:
    settings.TASK_QUEUE = given

    assert [message.id for message in checks.check_settings()] == [code]


def test_a_window_leaves_room_for_the_lease_of_its_work(settings: Settings) -> None:
    settings.LEASING = {"MIN_TTL": 20.0}
    settings.TASK_QUEUE = {"EXAMINE_EVERY": 39.0}
    assert "at least 40 seconds" in checks.check_settings()[0].msg

    settings.TASK_QUEUE = {"EXAMINE_EVERY": 40.0}
    assert checks.check_settings() == []


# By one of the workers


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Callable[[int], int]:
    """Lets a worker examine and prune so many times; how often it examined."""
    # The test's own connection is none of its business.
    for module in (housekeeping, services):
        monkeypatch.setattr(module, "connections", Mock())
    monkeypatch.setattr(services, "close_old_connections", lambda: None)
    settings.TASK_QUEUE = {"EXAMINE_EVERY": 60}
    examine = Mock()
    monkeypatch.setattr(recovery, "examine", examine)

    def run(count: int) -> int:
        before = examine.call_count
        keeping = housekeeping.services(threading.Event())
        for _ in range(count):
            for each in keeping:
                each.step()
        return examine.call_count - before

    return run


def test_a_worker_examines_and_prunes_by_itself(rounds: Callable[[int], int]) -> None:
    ended()

    assert rounds(1) == 1
    assert left() == set()
    assert set(OnceKey.objects.values_list("key", flat=True)) == {
        "leasing_tasks:examine",
        "leasing_tasks:prune",
    }


@pytest.mark.usefixtures("rounds")
def test_where_nothing_was_cancelled_one_query_looks_for_children(
    django_assert_num_queries: Callable[..., Any],
) -> None:
    _, children, _ = housekeeping.services(threading.Event())

    with django_assert_num_queries(1):
        children.step()


@pytest.mark.parametrize(
    ("state", "columns", "is_looked_for"),
    [
        ("cancelled", {}, True),
        (
            "cancelled",
            {"processed_at": after(-timedelta(hours=25)), "cancel_requested_at": EPOCH},
            False,
        ),
        ("succeeded", {}, False),
        ("running", {}, False),
        ("running", {"cancel_requested_at": DbNow()}, True),
    ],
    ids=["cancelled", "cancelled long ago", "succeeded", "running", "asked to stop"],
)
@pytest.mark.usefixtures("rounds")
def test_children_are_looked_for_where_a_task_was_stopped_lately(
    state: str, columns: dict[str, Any], is_looked_for: bool
) -> None:
    task = make_task(state=state)
    Task._base_manager.filter(pk=task.pk).update(**columns or {"priority": 1})
    _, children, _ = housekeeping.services(threading.Event())

    children.step()

    assert OnceKey.objects.filter(key="leasing_tasks:left_behind").exists() == is_looked_for


@pytest.mark.usefixtures("rounds")
def test_a_worker_alone_cancels_children_left_behind_within_twenty_seconds(
    database_clock: DatabaseClock, settings: Settings
) -> None:
    _, children, _ = housekeeping.services(threading.Event())
    assert 11 <= children.starts_in <= 15
    for _ in range(3):
        child = make_task(parent=make_task(state="cancelled"))
        pause = children.step()
        assert pause <= 18
        database_clock.advance(pause)
        assert Task.objects.get(pk=child.pk).status == "cancelled"

    # The lease of its work takes half of the window.
    settings.LEASING = {"MIN_TTL": 20.0}
    _, children, _ = housekeeping.services(threading.Event())
    assert children.step() >= 40


@pytest.mark.usefixtures("rounds")
def test_whether_it_is_time_to_prune_is_asked_less_often_than_to_examine(
    settings: Settings,
) -> None:
    examining, _, pruning = housekeeping.services(threading.Event())

    assert min(examining.starts_in, pruning.starts_in) >= 45
    assert max(examining.starts_in, pruning.starts_in) <= 60
    assert 60 <= examining.step() <= 72
    assert 3600 <= pruning.step() <= 4320
    settings.TASK_QUEUE |= {"PRUNE_EVERY": None}
    assert len(housekeeping.services(threading.Event())) == 2


def test_what_one_did_no_other_does_until_its_time_comes(
    rounds: Callable[[int], int], database_clock: DatabaseClock
) -> None:
    assert [rounds(2), rounds(1)] == [1, 0]
    late = ended()

    database_clock.advance(61)
    assert (rounds(1), left()) == (1, {late.pk})

    database_clock.advance(3600)
    assert (rounds(1), left()) == (1, set())


# The command


def printed(*options: str) -> str:
    out = StringIO()
    call_command("prune_tasks", "--pause", "0", *options, stdout=out)
    return out.getvalue()


def test_the_command_can_be_given_an_age_and_states() -> None:
    kept = ended("failed", days=2)
    ended("succeeded", days=2)
    ended("cancelled", days=2)

    text = printed("--days", "1", "--state", "succeeded", "--state", "cancelled", "--batch", "1")

    assert text == "Pruned 1 succeeded, 1 cancelled.\n"
    assert left() == {kept.pk}


# By an operator


@pytest.mark.parametrize("state", ENDED)
def test_an_operator_can_delete_what_has_ended(state: str, reported: Any) -> None:
    task = make_task(state=state)
    reported.clear()

    assert Task.objects.filter(pk=task.pk).discard(by="root") == 1
    assert left() == set()
    assert reported == [("discarded", task.pk, {"by": "root"})]


@pytest.mark.parametrize("state", NOT_ENDED)
def test_what_has_not_ended_cannot_be_discarded(state: str, reported: Any) -> None:
    task = make_task(state=state)
    reported.clear()

    assert Task.objects.discard() == 0
    assert (left(), reported) == ({task.pk}, [])


def test_what_the_database_keeps_from_being_discarded_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, reported: Any
) -> None:
    limits(bulk_batch=2)
    one, another, third, *gone = (make_task(state="failed").pk for _ in range(5))
    kept = {one, another, third}
    delete, tried = operator._delete, list[int]()
    reported.clear()

    def refused(rows: Any, keys: list[int]) -> int:
        tried.extend(keys)
        assert tried.count(one) <= 2  # with another, and alone
        if kept & {*keys}:
            raise IntegrityError("a constraint of somebody's own")
        return delete(rows, keys)

    monkeypatch.setattr(operator, "_delete", refused)

    assert Task.objects.discard() == 2
    assert left() == kept
    assert [key for _, key, _ in reported] == gone


def test_verbs_over_many_tasks_are_many_transactions(limits: Limits, reported: Any) -> None:
    limits(bulk_batch=2)
    tasks = make_tasks(5, state="failed")
    make_task(state="succeeded")
    reported.clear()

    with CaptureQueriesContext(connection) as queries:
        assert Task.objects.failed().order_by("-priority").retry(by="root") == 5
    savepoints = [query for query in queries if query["sql"].startswith("SAVEPOINT")]
    assert len(savepoints) == 2 * 3  # in each an update, which the key of another may refuse
    assert reported == [("retried", task.pk, {"by": "root"}) for task in tasks]

    assert Task.objects.order_by("-pk").reschedule(queue="default") == 5
    Task.objects.update(status="failed", processed_at=DbNow())
    assert Task.objects.discard() == 6
