"""Counts of tasks in a process, and the database's figures of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.signals import post_init
from django.test import Client
from prometheus_client import CollectorRegistry, generate_latest
from pytest_django import Settings

from leasing.functions import after
from leasing.metrics import leases as lease_figures
from leasing.runtime.events import is_heard
from tasks.exceptions import GiveUp
from tasks.maintenance import recovery
from tasks.metrics import database, process
from tasks.models import OutboxMessage, Queue, Task, TaskAttempt, TaskStatus, Worker
from tasks.outbox import publish
from tasks.registry import Kind
from tasks.sample import SLEEP
from tests.factories import claimed, make_task, make_worker
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire
from tests.metrics import Scrape, Value, check_names
from tests.processes import wait_for
from tests.tasks.support import make_due
from tests.tasks.workers import ended, working

pytestmark = pytest.mark.django_db

QUEUE = {"queue": "default"}


def executions(value: Value, name: str = SLEEP) -> dict[str, float]:
    """Return the number of attempts that ended in each way, of those in which any did."""
    outcomes = ("succeeded", "attempt_failed", "failed", "cancelled", "returned", "snoozed", "lost")
    counts = {
        outcome: value("tasks_executions_total", **QUEUE, task=name, outcome=outcome)
        for outcome in outcomes
    }
    return {outcome: count for outcome, count in counts.items() if count}


# Enqueueing


def test_tasks_are_counted_as_they_are_enqueued(value: Value) -> None:
    Task.objects.enqueue("jobs.echo")
    Task.objects.enqueue_many("jobs.echo", [{}] * 7)

    assert value("tasks_enqueued_total", **QUEUE) == 8


def test_enqueues_that_a_key_turns_away_are_counted_apart(value: Value) -> None:
    for _ in range(3):
        Task.objects.enqueue("jobs.echo", unique_key="one")

    assert value("tasks_enqueued_total", **QUEUE) == 1
    assert value("tasks_duplicates_total", **QUEUE) == 2


# Claiming


@pytest.mark.usefixtures("form")
def test_a_claim_tells_how_long_its_tasks_were_due(
    database_clock: DatabaseClock, value: Value
) -> None:
    for seconds in (7, 5):
        make_task(scheduled_at=database_clock.now)
        database_clock.advance(seconds)

    for _ in range(2):
        Task.objects.take("ann", limit=1)

    assert value("tasks_claims_total", **QUEUE) == 2
    assert value("tasks_queue_latency_seconds_count", **QUEUE) == 2
    assert value("tasks_queue_latency_seconds_sum", **QUEUE) == 12 + 5


@pytest.mark.usefixtures("form")
def test_a_task_that_was_taken_back_does_not_tell_of_its_first_wait_again(
    database_clock: DatabaseClock, value: Value
) -> None:
    make_task(scheduled_at=database_clock.now)
    Task.objects.take("ann", ttl=30)
    database_clock.advance(5)
    Task.objects.revoke()

    assert len(Task.objects.take("bob")) == 1

    assert value("tasks_claims_total", **QUEUE) == 2
    assert value("tasks_queue_latency_seconds_count", **QUEUE) == 1


def test_the_claims_of_remote_workers_are_counted_the_same(value: Value) -> None:
    make_task()

    Task.objects.claim("ann")

    assert value("tasks_claims_total", **QUEUE) == 1
    assert value("tasks_queue_latency_seconds_count", **QUEUE) == 1


# Ends


def test_attempts_are_counted_by_how_they_ended(value: Value) -> None:
    Task.objects.complete(make_task(state="running"))
    Task.objects.fail(make_task(state="running"), "no luck")
    Task.objects.fail(make_task(state="running"), GiveUp("no hope"))
    Task.objects.accept_cancel(make_task(state="running"), by="bob")
    Task.objects.give_back(make_task(state="running"), "stopped")
    Task.objects.snooze(make_task(state="running"), 60)

    outcomes = ("succeeded", "attempt_failed", "failed", "cancelled", "returned", "snoozed")
    assert executions(value) == dict.fromkeys(outcomes, 1)
    assert value("tasks_failed_total", **QUEUE) == 1


def test_what_ends_while_it_waits_is_no_attempt(value: Value) -> None:
    make_task()
    make_task(state="retrying")

    assert Task.objects.cancel(by="bob") == 2

    assert "cancelled" not in executions(value)


@pytest.mark.usefixtures("form")
def test_results_that_are_stored_together_are_counted_each(value: Value) -> None:
    for _ in range(3):
        make_task()
    claimed = Task.objects.take("ann", limit=3)

    assert Task.objects.complete_claimed([(each, None) for each in claimed]) == []

    assert executions(value) == {"succeeded": 3}


@pytest.mark.usefixtures("on_postgresql", "unheard", "registry")
def test_counting_makes_no_model_instances() -> None:
    Task.objects.enqueue_many("jobs.echo", [{}])  # whose statement is made of an instance, once
    Task.objects.all().delete()
    make_task()
    made: list[object] = []

    def note(instance: object, **named: object) -> None:
        made.append(instance)

    post_init.connect(note, sender=Task)
    try:
        claimed = Task.objects.take("ann")
        Task.objects.complete_claimed([(each, None) for each in claimed])
        Task.objects.enqueue_many("jobs.echo", [{}] * 100)
    finally:
        post_init.disconnect(note, sender=Task)

    # One of those that were enqueued says for all in which queue.
    assert len(made) <= 1
    assert Task.objects.succeeded().count() == 1


def test_a_task_without_code_here_has_no_name_of_its_own(value: Value) -> None:
    task = make_task(state="running")
    Task.objects.filter(pk=task.pk).update(name="whatever/somebody/wrote")
    task.refresh_from_db()

    Task.objects.fail(task, "no luck")

    assert executions(value, "unknown") == {"attempt_failed": 1}


# Recovery


def test_recovery_tells_how_long_a_task_was_without_a_holder(
    database_clock: DatabaseClock, value: Value
) -> None:
    task = make_task(state="running", ttl=30)
    database_clock.advance(10)
    Task.objects.heartbeat(task)
    database_clock.advance(34)

    assert Task.objects.recover() == 1

    assert value("tasks_recovered_total", **QUEUE, reason="expired") == 1
    assert value("tasks_death_to_requeue_seconds_sum", **QUEUE) == 34
    assert value("tasks_recovery_delay_seconds_sum", **QUEUE) == 4
    assert value("leasing_expirations_total", model="leasing_tasks.task") == 1
    assert executions(value) == {"lost": 1}


def test_a_task_that_dies_with_its_holder_is_lost_and_failed(value: Value) -> None:
    expire(make_task(state="running", max_attempts=1))

    Task.objects.recover()

    assert executions(value) == {"lost": 1}
    assert value("tasks_failed_total", **QUEUE) == 1


def test_what_else_takes_a_task_back_is_counted_apart(
    database_clock: DatabaseClock, value: Value
) -> None:
    make_task(state="running", ttl=300, progress_timeout=30)
    database_clock.advance(31)
    Task.objects.recover_stalled()
    make_task(state="running", ttl=300)
    Task.objects.revoke("enough", "root")

    found = {
        reason: value("tasks_recovered_total", **QUEUE, reason=reason)
        for reason in ("expired", "stalled", "revoked")
    }
    assert found == {"expired": 0, "stalled": 1, "revoked": 1}
    # Their holders are not dead.
    assert value("tasks_death_to_requeue_seconds_count", **QUEUE) == 0


def test_recovery_says_when_it_last_succeeded(
    value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = recovery.Totals(succeeded_at=12.5)
    totals.repaired["unleased"] = 2
    monkeypatch.setattr(recovery, "totals", totals)

    assert value("tasks_recovery_last_success_timestamp_seconds") == 12.5
    assert value("tasks_repaired_total", kind="unleased") == 2


# A worker


@pytest.mark.django_db(transaction=True)
def test_a_worker_shows_its_slots_and_how_long_attempts_have_them(
    value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    Task.objects.enqueue("jobs.echo", {"crate": 1})
    with working(threads=3) as worker:
        monkeypatch.setattr(process.STATE, "executors", worker.executors)
        wait_for(lambda: executions(value, "jobs.echo") == {"succeeded": 1})
        assert value("tasks_worker_slots", kind="thread") == 3
        assert value("tasks_worker_slots_busy", kind="thread") == 0
        assert value("tasks_worker_slots_blocked", kind="thread") == 0
        assert value("tasks_execution_duration_seconds_count", **QUEUE) == 1
        wait_for(lambda: value("tasks_recovery_last_success_timestamp_seconds") > 0)
    assert ended(worker)()
    assert Kind.THREAD.value == "thread"


# Who listens, and names


def test_nothing_is_counted_while_nobody_asks() -> None:
    assert not is_heard("attempt.ran")


def test_names_are_as_promtool_wants_them(registry: CollectorRegistry) -> None:
    check_names(generate_latest(registry).decode())


# The database


@pytest.fixture
def found(settings: Settings) -> Iterator[None]:
    settings.LEASING = {**settings.LEASING, "METRICS_TOKEN": "t"}
    yield
    lease_figures.figures.cache_clear()
    database.figures.cache_clear()


def read() -> Scrape:
    """Return the metrics of the web app."""
    response = Client().get("/ops/metrics", headers={"Authorization": "Bearer t"})
    assert response.status_code == 200
    return Scrape(response.content.decode())


@pytest.mark.usefixtures("found")
def test_tasks_put_off_for_lack_of_a_handler_are_counted_as_due() -> None:
    make_worker(handlers={"other": "thread"})
    task = make_task()
    Task.objects.give_back(claimed(task, "ann"), "No handler", delay=timedelta(seconds=60))
    Task.objects.update(started_at=after(timedelta(seconds=-900)))
    make_task(state="scheduled")

    said = read()

    assert (said.sum("tasks_queue_ready"), said.sum("tasks_queue_scheduled")) == (1, 1)
    assert 900 <= said.sum("tasks_queue_oldest_ready_age_seconds") < 930


@pytest.mark.usefixtures("found")
def test_queues_are_counted_in_the_database(settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": ("default", "mail", "idle")}
    states = ("ready", "ready", "scheduled", "running", "stuck", "succeeded", "failed", "given_up")
    for state in states:
        make_task(state=state)
    Task.objects.filter(status="failed").order_by().update(compensation=F("name"))
    Task.objects.filter(status="failed", attempts=F("max_attempts")).update(compensation="")
    first = make_task(queue="mail")
    make_due(first)
    Task.objects.filter(pk=first.pk).update(scheduled_at=after(timedelta(seconds=-90)))
    Queue.objects.pause("mail")
    make_worker(queues=["default"])

    said = read()

    def count(name: str) -> list[float]:
        return [said.sum(f"tasks_{name}", queue=queue) for queue in ("default", "mail", "idle")]

    assert count("queue_ready") == [2, 1, 0]
    assert count("queue_scheduled") == [1, 0, 0]
    assert count("queue_running") == [2, 0, 0]
    assert count("orphans") == [1, 0, 0]
    assert count("queue_paused") == [0, 1, 0]
    assert count("queue_workers") == [1, 0, 0]
    assert 90 <= count("queue_oldest_ready_age_seconds")[1] < 120
    assert count("queue_oldest_ready_age_seconds")[2] == 0
    assert said.sum("tasks_failed_current") == 2
    assert said.sum("tasks_compensations_failed") == 1
    assert said.sum("tasks_workers", role="worker", state="live") == 1
    assert said.sum("tasks_recovering_workers") == 1
    # Without tasks a queue has figures all the same: their absence would say nothing.
    assert said.text.count('queue="idle"') == 8


@pytest.mark.usefixtures("found")
def test_the_oldest_heartbeat_is_that_of_what_runs(database_clock: DatabaseClock) -> None:
    renewed = make_task(state="running", ttl=300)
    database_clock.advance(20)
    Task.objects.heartbeat(renewed)
    database_clock.advance(3)
    make_task(state="running", ttl=300)
    database_clock.advance(4)

    assert read().sum("tasks_oldest_heartbeat_age_seconds", queue="default") == 7


@pytest.mark.usefixtures("found")
def test_every_attempt_that_the_ledgers_have_is_counted_once(value: Value) -> None:
    for _ in range(4):
        make_task()
    first, second, third, fourth = Task.objects.take("ann", limit=4)
    Task.objects.complete_claimed([(first, None)])
    Task.objects.fail(second.task, "no luck")
    Task.objects.fail(third.task, GiveUp("no hope"))
    expire(fourth.task)
    Task.objects.recover()

    ended_badly = TaskAttempt.objects.count()
    ended_well = Task.objects.filter(status=TaskStatus.SUCCEEDED).count()
    assert value("tasks_claims_total", **QUEUE) == ended_badly + ended_well == 4
    assert sum(executions(value).values()) == 4


# The relay and its outbox


def test_figures_of_the_outbox_say_what_waits_and_what_is_refused(settings: Settings) -> None:
    assert said() == {"pending": 0, "failing": 0, "oldest_age_seconds": 0}
    old, gone = (publish(topic, None) for topic in ("old", "gone"))
    rows = OutboxMessage.objects.all()
    rows.filter(pk=old.pk).update(created_at=after(timedelta(seconds=-90)))
    for failures in (9, 10):
        refused = publish("refused", None)
        rows.filter(pk=refused.pk).update(failures=failures)
    rows.mark_published([gone.pk])

    found = said()

    assert (found["pending"], found["failing"]) == (3, 1)
    assert found["oldest_age_seconds"] == pytest.approx(90, abs=10)


def said() -> dict[str, float]:
    families = {family.name: family.samples for family in database._outbox()}
    names = ("pending", "failing", "oldest_age_seconds")
    return {name: families[f"tasks_outbox_{name}"][0].value for name in names}


def relays() -> list[float]:
    (family, *_) = database._outbox()
    return [sample.value for sample in family.samples]


def test_a_relay_is_missed_where_there_is_something_for_one(settings: Settings) -> None:
    assert relays() == []
    publish("orders.paid", None)
    assert relays() == [0]
    OutboxMessage.objects.all().delete()
    settings.TASK_QUEUE = {"CELERY_QUEUES": ["default"]}
    assert relays() == [0]

    for _ in range(2):
        make_worker(role="relay", queues=[], slots={})

    assert relays() == [2]
    Worker.objects.update(last_seen_at=after(-1.5 * Worker.GONE_AFTER))
    assert relays() == [0]
