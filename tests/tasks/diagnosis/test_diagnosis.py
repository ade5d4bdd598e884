"""Why a task is where it is, for every situation it can be in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.diagnosis.base import FLAPPING_WITHIN, Diagnosis
from leasing.functions import after, database_now
from leasing.humanize import stamp
from tasks import registry
from tasks.diagnosis import diagnose, read_context
from tasks.models import AttemptOutcome, Queue, Task, TaskAttempt, Worker
from tasks.payload import OTHER_RELEASE
from tasks.sample import SLEEP
from tests.factories import claimed, make_task, make_worker
from tests.tasks.support import lose, make_due, sample_handlers

pytestmark = pytest.mark.django_db


def silent_for(task: Task, share: float) -> Task:
    """``task``, whose last sign of life is ``share`` of its ttl ago."""
    back = task.ttl * share
    Task.objects.filter(pk=task.pk).update(
        acquired_at=F("acquired_at") - back, expires_at=F("expires_at") - back
    )
    task.refresh_from_db()
    return task


def running_ok() -> Task:
    make_worker(name="ann")
    return make_task(state="running", holder="ann")


def late() -> Task:
    return silent_for(running_ok(), 0.6)


def holder_gone() -> Task:
    make_worker(name="bea")
    return silent_for(make_task(state="running", holder="ann"), 0.6)


def expired_holder_alive() -> Task:
    make_worker(name="ann")
    return make_task(state="stuck", holder="ann")


def expired_unclaimed() -> Task:
    make_worker(name="bea")
    return make_task(state="stuck", holder="ann")


def no_recoverer() -> Task:
    make_worker(name="ann", state="gone")
    make_worker(name="bea", sweeps=False)
    return make_task(state="stuck", holder="ann")


def backoff() -> Task:
    task = make_task(state="retrying")
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(minutes=5)))
    task.refresh_from_db()
    return task


def no_worker() -> Task:
    make_worker(queues=["mail"])
    return make_task()


def unknown_task() -> Task:
    make_worker(handlers={"something.else": "thread"})
    return make_task()


def invalid_arguments() -> Task:
    """A task of another release, as a worker gives it back."""
    make_worker()
    task = make_task()
    Task.objects.filter(pk=task.pk).update(task_data={"sleep_duration_seconds": 1, "days": 2})
    for _ in range(2):
        make_due(task)
        mine = claimed(task, "ann")
        mismatch = registry.find(task.name).parameters.mismatch(mine.task_data)
        reason = f"{mismatch} {OTHER_RELEASE}"
        Task.objects.give_back(mine, reason, delay=registry.UNKNOWN_DELAY)
    task.refresh_from_db()
    return task


def saturated() -> Task:
    make_worker(name="ann", slots={"thread": 1})
    make_task(state="running", holder="ann")
    return make_task()


def queue_paused() -> Task:
    Queue.objects.pause("default", by="olga", reason="the server is down")
    return make_task()


def key_held() -> Task:
    make_worker()
    make_task(state="running", concurrency_key="k", concurrency_limit=2, holder="ann")
    make_task(state="running", concurrency_key="k", concurrency_limit=2, holder="bob")
    return make_task(concurrency_key="k", concurrency_limit=2)


def due() -> Task:
    make_worker()
    return make_task()


def cancel_pending() -> Task:
    task = running_ok()
    Task.objects.filter(pk=task.pk).cancel(by="bob")
    task.refresh_from_db()
    return task


def zombie() -> Task:
    make_worker(name="ann")
    task = running_for_long(progress_timeout=timedelta(seconds=60))
    Task.objects.filter(pk=task.pk).update(progressed_at=after(-timedelta(seconds=61)))
    task.refresh_from_db()
    return task


def no_progress() -> Task:
    make_worker(name="ann")
    task = running_for_long(progress_timeout=timedelta(seconds=45), max_attempts=3)
    Task.objects.filter(pk=task.pk).update(progressed_at=after(-timedelta(seconds=28)))
    task.refresh_from_db()
    return task


def running_long() -> Task:
    make_worker(name="ann")
    sample_handlers(database_now("default"), 30, sample__sleep=(0, {0.3: 90, 0.6: 10}))
    task = running_for_long(acquired_at=after(-timedelta(seconds=109)))
    Task.objects.renew(task)
    task.refresh_from_db()
    return task


def running_for_long(**columns: Any) -> Task:
    task = make_task(state="running", holder="ann")
    Task.objects.filter(pk=task.pk).update(**columns)
    task.refresh_from_db()
    return task


def clock_skew() -> Task:
    """Claimed on a server whose clock was five minutes ahead."""
    ahead = timedelta(minutes=5)
    make_worker(name="ann")
    return running_for_long(
        acquired_at=F("acquired_at") + ahead, expires_at=F("expires_at") + ahead
    )


def flapping() -> Task:
    make_worker(name="ann")
    task = make_task()
    for holder in ("ann", "bob", "cid"):
        lose(claimed(task, holder))
    task.refresh_from_db()
    return task


def over_celery(*roles: str, published: bool = False) -> Task:
    """A task that Celery workers alone would run, and processes of these ``roles`` as well."""
    make_worker(role="celery")
    for role in roles:
        make_worker(role=role, queues=[], handlers={}, slots={})
    task = make_task()
    if published:
        Task.objects.filter(pk=task.pk).update(published_at=after(timedelta(seconds=1)))
        task.refresh_from_db()
    return task


SITUATIONS: dict[str, Callable[[], Task]] = {
    "no_relay": lambda: over_celery("recovery"),
    "unpublished": lambda: over_celery("relay"),
    "published": lambda: over_celery(published=True),
    "running_ok": running_ok,
    "running_long": running_long,
    "no_progress": no_progress,
    "cancel_pending": cancel_pending,
    "zombie": zombie,
    "clock_skew": clock_skew,
    "flapping": flapping,
    "late": late,
    "holder_gone": holder_gone,
    "expired_holder_alive": expired_holder_alive,
    "expired_unclaimed": expired_unclaimed,
    "no_recoverer": no_recoverer,
    "scheduled": lambda: make_task(state="scheduled"),
    "backoff": backoff,
    "no_worker": no_worker,
    "unknown_task": unknown_task,
    "invalid_arguments": invalid_arguments,
    "saturated": saturated,
    "queue_paused": queue_paused,
    "key_held": key_held,
    "due": due,
    "done": lambda: make_task(state="succeeded"),
    "cancelled": lambda: make_task(state="cancelled"),
    "exhausted": lambda: make_task(state="failed"),
    "given_up": lambda: make_task(state="given_up"),
}


@pytest.fixture(autouse=True)
def _over_celery(settings: Settings) -> None:
    settings.TASK_QUEUE = {"CELERY_QUEUES": ["default"]}


@pytest.mark.parametrize("code", SITUATIONS)
def test_each_situation_is_recognised_and_answered_in_full(code: str) -> None:
    answer = diagnose(SITUATIONS[code]())

    assert answer.code == code
    assert answer.headline and answer.next and answer.facts
    assert answer.severity in ("ok", "info", "warning", "critical")
    assert all(action.consequence and action.permission for action in answer.actions)
    assert len(answer.answers) == 5 and all(text for _, text in answer.answers)
    assert json.dumps(answer.as_json())


@pytest.mark.parametrize("code", ["late", "holder_gone", "expired_unclaimed", "no_recoverer"])
def test_a_task_in_trouble_names_its_holder_and_the_deadline(code: str) -> None:
    task = SITUATIONS[code]()
    reported = dict(diagnose(task).facts).values()

    assert "ann" in reported
    assert task.acquired_at and {stamp(task.acquired_at), stamp(task.expires_at)} <= {
        each.partition(",")[0] for each in reported
    }


def test_a_running_task_is_compared_with_what_its_handler_usually_takes() -> None:
    answer = diagnose(running_long())
    assert answer.headline == (
        "Running for 1 min 49 s; sample.sleep usually takes 0.3 s (p95 0.6 s)."
    )
    assert answer.severity == "warning"

    answer = diagnose(make_task(state="running", holder="ann"))
    assert (answer.code, answer.severity) == ("running_ok", "ok")
    assert answer.headline == "Running for 0 s; sample.sleep usually takes 0.3 s (p95 0.6 s)."


@pytest.mark.parametrize(
    ("attempts", "then"),
    [(3, "starts again (attempt 2 of 3)"), (1, "fails, since this is its last attempt")],
)
def test_a_task_whose_progress_pauses_says_when_it_is_taken_back(attempts: int, then: str) -> None:
    task = no_progress()
    task.max_attempts = attempts

    answer = diagnose(task)

    assert answer.headline == "No progress for 28 s." and answer.severity == "warning"
    assert answer.next == f"Unless it reports some, the task is taken back in 17 s and {then}."
    assert task.progressed_at is not None
    task.progressed_at += timedelta(seconds=10)
    assert diagnose(task).code == "running_ok"


def test_what_does_not_heal_by_itself_says_so() -> None:
    answer = diagnose(no_recoverer())

    assert answer.severity == "critical" and "manage.py run_worker" in answer.next


@pytest.mark.parametrize(
    ("attempts", "end"), [(1, "failed"), (3, "ready"), (3, "cancel"), (1, "cancel")]
)
def test_a_stuck_task_says_what_recovery_will_make_of_it(attempts: int, end: str) -> None:
    make_worker()
    task = make_task(state="stuck", max_attempts=attempts)
    if end == "cancel":
        Task.objects.filter(pk=task.pk).cancel()
        task.refresh_from_db()

    said = diagnose(task).next

    assert [each for each in ("failed", "ready", "cancel") if each in said] == [end]


@pytest.mark.parametrize(
    ("state", "code"), [("running", "holder_gone"), ("stuck", "expired_unclaimed")]
)
def test_a_process_that_another_of_its_name_has_replaced_is_gone(state: str, code: str) -> None:
    worker = make_worker(name="ann")
    task = make_task(state=state, holder="ann")
    assert diagnose(task).code in ("running_ok", "expired_holder_alive")

    assert task.acquired_at is not None
    restarted_at = task.acquired_at + timedelta(microseconds=1)
    Worker.objects.filter(pk=worker.pk).update(started_at=restarted_at)
    assert diagnose(task).code == code
    if state == "running":  # it was cut off, and is back
        task.renewed_at = restarted_at
        assert diagnose(task).code == "running_ok"


def test_who_asked_for_a_cancellation_is_named_while_it_runs_and_afterwards() -> None:
    task = cancel_pending()
    answer = diagnose(task)
    assert answer.code == "cancel_pending" and "bob" in answer.headline

    Task.objects.accept_cancel(task)
    answer = diagnose(task)
    assert answer.code == "cancelled" and "bob" in answer.headline


def test_remote_workers_serve_the_queues_whose_tasks_they_hold() -> None:
    held = make_task(state="running", holder="a remote worker")
    task = make_task()
    assert (diagnose(task).code, diagnose(task).severity) == ("due", "ok")
    Task.objects.filter(pk=held.pk).update(queue="mail")
    assert diagnose(task).code == "no_worker"
    Task.objects.filter(pk=held.pk).update(
        queue=task.queue, expires_at=after(-timedelta(minutes=1))
    )
    assert diagnose(task).code == "no_worker"


def test_the_threads_of_workers_without_a_sign_of_life_are_not_free() -> None:
    make_worker(state="late")
    found = diagnose(make_task())
    # Where no worker serves the queue at all it is critical.
    assert (found.code, found.severity) == ("no_worker", "warning")
    make_worker()
    assert diagnose(make_task()).code == "due"


def of_kinds(**columns: Any) -> Worker:
    """A worker as run_worker starts it, that has handlers of every kind."""
    handlers = {"sample.sleep": "thread", "feeds.fetch": "coroutine", "images.resize": "process"}
    slots = {"thread": 4, "coroutine": 100, "process": 1}
    worker = make_worker(**{"name": "ann", "handlers": handlers, "slots": slots} | columns)
    return worker


def named(name: str, **options: Any) -> Task:
    task = make_task(**options)
    Task.objects.filter(pk=task.pk).update(name=name)
    task.refresh_from_db()
    return task


def held_by_ann(count: int, name: str = "sample.sleep") -> None:
    for _ in range(count):
        named(name, state="running", holder="ann")


@pytest.mark.parametrize(("busy", "code"), [(3, "due"), (4, "saturated"), (9, "saturated")])
def test_a_task_waits_for_a_slot_of_its_own_kind(busy: int, code: str) -> None:
    of_kinds()
    held_by_ann(busy)

    assert diagnose(named("sample.sleep")).code == code
    assert diagnose(named("feeds.fetch")).code == "due"
    assert diagnose(named("images.resize")).code == "due"


def test_prefetched_tasks_run_in_no_slot() -> None:
    of_kinds()
    held_by_ann(9)
    answer = diagnose(named("sample.sleep"))

    # Four of the nine run; the option names the kind that is short.
    assert re.findall(r"\d+", dict(answer.facts)["Slots"]) == ["4", "4", "5"]
    assert "4 threads" in answer.headline and "--threads" in answer.next


def test_a_slot_that_is_blocked_is_not_free() -> None:
    of_kinds(blocked={"thread": 3})
    held_by_ann(1)
    answer = diagnose(named("sample.sleep"))

    assert answer.code == "saturated" and "3 of them blocked" in dict(answer.facts)["Slots"]
    assert "restarted" in answer.next


def test_a_pool_of_celery_runs_every_kind_in_the_same_slots() -> None:
    task = over_celery(published=True)
    slots = {"slots": {"pool": 2}, "handlers": {task.name: "pool", "feeds.fetch": "pool"}}
    Worker.objects.filter(role="celery").update(name="ann", **slots)
    held_by_ann(1)
    assert diagnose(task).code == "published"
    held_by_ann(1, "feeds.fetch")
    assert diagnose(task).code == "saturated"


def test_what_a_former_process_of_its_name_left_occupies_no_slot() -> None:
    of_kinds()
    held_by_ann(4)
    Worker.objects.update(started_at=after(timedelta(seconds=1)))

    assert diagnose(named("sample.sleep")).code == "due"


def test_slots_of_several_workers_are_added_up() -> None:
    of_kinds()
    held_by_ann(4)
    of_kinds(name="bob")
    assert diagnose(named("sample.sleep")).code == "due"
    Worker.objects.update(slots={"thread": 0})
    answer = diagnose(named("sample.sleep"))
    assert answer.code == "saturated" and "no thread of the 2 workers" in answer.headline


def test_a_holder_whose_sign_of_life_is_missing_is_not_said_to_have_been_seen() -> None:
    task = late()
    seen = diagnose(task)
    Worker.objects.update(last_seen_at=after(-1.5 * Worker.LATE_AFTER))
    unseen = diagnose(task)

    def said(answer: Diagnosis) -> str:
        return re.sub(r"\d+", "", answer.headline)

    assert seen.code == unseen.code == "late" and said(seen) != said(unseen)


@pytest.mark.parametrize(("spent", "reported"), [(1, []), (3, ["3"])])
def test_attempts_that_are_used_up_are_counted_in_plain_words(
    spent: int, reported: list[str]
) -> None:
    task = make_task(state="failed")
    Task.objects.filter(pk=task.pk).update(attempts=spent, max_attempts=spent)
    task.refresh_from_db()
    answer = diagnose(task)
    assert answer.code == "exhausted" and re.findall(r"\d+", answer.headline) == reported


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        ("late", ["revoke", "cancel"]),
        ("cancel_pending", ["revoke"]),
        ("exhausted", ["retry", "discard"]),
        ("scheduled", ["reschedule", "cancel"]),
        ("queue_paused", ["resume", "reschedule", "cancel"]),
    ],
)
def test_what_can_be_done_is_offered_with_its_consequence(code: str, actions: list[str]) -> None:
    assert [offer.name for offer in diagnose(SITUATIONS[code]()).actions] == actions


def test_whose_key_is_waited_for_is_named() -> None:
    answer = diagnose(key_held())

    assert "ann, bob" in dict(answer.facts).values() and "ann, bob" in answer.who


def test_a_task_that_goes_from_worker_to_worker_names_them_and_what_is_left() -> None:
    answer = diagnose(flapping())

    assert "cid, bob, ann" in dict(answer.facts).values()
    often = "3 times within 10 min"
    assert answer.headline == f"Each worker that ran it died, {often}. It may be the cause."
    assert re.findall(r"\d+", answer.next) == ["7"]  # attempts are left


def test_a_task_that_was_also_given_back_is_unstable() -> None:
    task = flapping()
    attempts = TaskAttempt._base_manager.filter(task=task, holder="bob")
    attempts.update(outcome=AttemptOutcome.RETURNED)

    assert diagnose(task).headline.startswith("Unstable: lost or given back 3 times")


def test_a_task_that_was_lost_with_its_worker_does_not_say_that_its_attempts_failed() -> None:
    task = make_task(state="running", max_attempts=1)
    lose(task)
    task.refresh_from_db()

    answer = diagnose(task)

    assert answer.code == "exhausted"
    assert answer.headline == "Lost with its worker, after 1 attempt."


@pytest.mark.parametrize("change", ["twice", "long ago", "failed", "unknown", "mismatch", "ended"])
def test_what_was_lost_seldom_or_long_ago_or_failed_by_itself_is_steady(change: str) -> None:
    task = flapping()
    attempts = TaskAttempt._base_manager.filter(task=task)
    match change:
        case "twice":
            attempts.filter(holder="ann").delete()
        case "long ago":
            attempts.update(ended_at=after(-FLAPPING_WITHIN))
        case "failed":
            attempts.update(outcome=AttemptOutcome.FAILED)
        case "unknown":
            reason = "No handler is registered for 'sample.sleep': this worker lacks its module."
            attempts.update(outcome=AttemptOutcome.RETURNED, error=reason)
        case "mismatch":
            reason = "build(ctx) does not take this data: 'day' is unknown. Another release may"
            attempts.update(outcome=AttemptOutcome.RETURNED, error=reason)
        case "ended":
            Task.objects.filter(pk=task.pk).cancel()
            task.refresh_from_db()

    assert diagnose(task).code in ("due", "cancelled")


@pytest.mark.parametrize(
    ("state", "seconds", "severity"),
    [
        ("ready", 0, "critical"),
        ("ready", 57, "critical"),
        ("retrying", 57, "critical"),
        ("ready", 3600, "warning"),
    ],
)
def test_a_task_whose_name_no_worker_knows_is_not_said_to_be_postponed(
    state: str, seconds: int, severity: str
) -> None:
    make_worker(handlers={"reports.build": "thread"})
    make_worker(handlers={"reports.send": "thread"}, queues=["mail"])
    task = named("reports.bild", state=state)
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(seconds=seconds)))
    task.refresh_from_db()

    answer = diagnose(task)

    assert (answer.code, answer.severity) == ("unknown_task", severity)
    assert answer.headline.endswith("named reports.bild.")
    assert ("Last error" in dict(answer.facts)) == (state == "retrying")


def test_the_reason_for_which_a_task_was_put_off_is_named() -> None:
    make_worker()
    task = make_task(state="retrying")  # attempt 1 failed
    make_due(task)
    refusal = "its worker had no free slot for it"
    Task.objects.give_back(claimed(task, "ann"), refusal, delay=timedelta(seconds=60))
    task.refresh_from_db()

    answer = diagnose(task)

    assert (answer.code, answer.headline.partition(" Reason: ")[2]) == ("scheduled", refusal)
    # Who has failed since then waits for another reason.
    make_due(task)
    Task.objects.fail(claimed(task, "ann"), "no luck")
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(minutes=5)))
    task.refresh_from_db()
    assert diagnose(task).code == "backoff"


@pytest.mark.parametrize(
    ("state", "end"), [("retrying", "The last attempt failed."), ("recovered", "was lost.")]
)
def test_a_task_that_waits_for_a_retry_says_how_its_attempt_ended(state: str, end: str) -> None:
    task = make_task(state=state)
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(minutes=5)))
    task.refresh_from_db()

    answer = diagnose(task)

    assert answer.code == "backoff" and f"{end} Next retry in 5 min." in answer.headline


def test_what_does_not_fit_is_named_with_how_often_it_was_given_back() -> None:
    answer = diagnose(invalid_arguments())

    assert answer.headline == (
        "Its data does not fit its handler: sleep(ctx, sleep_duration_seconds) does not take this "
        "data: 'days' is unknown."
    )
    assert dict(answer.facts)["Given back"] == "2 times"


@pytest.mark.parametrize(
    ("name", "minutes", "advice"),
    [
        (SLEEP, -1, "This process has it, and the workers started before the task was enqueued: "),
        (SLEEP, 1, "This process has it: check which release the workers run"),
        ("zip", -1, "This process does not have it either."),
        ("zip", 1, "This process does not have it either."),
    ],
)
def test_a_missing_handler_is_explained_by_who_has_it_and_who_started_when(
    name: str, minutes: int, advice: str
) -> None:
    """A name that is spelled alike is none to advise: it may be of a handler that is in use, which
    would then run these tasks too."""
    make_worker(handlers={f"{name}s": "thread"})
    task = named(name)
    Worker.objects.update(started_at=task.created_at + timedelta(minutes=minutes))

    answer = diagnose(task)

    assert answer.code == "unknown_task" and advice in answer.next
    assert f"{name}s" not in answer.headline + answer.next
    assert ("restart them with the current release" in answer.next) == (advice[-2:] == ": ")
    assert ('@handler("its new name", aliases=["zip"])' in answer.next) == (name == "zip")


def test_workers_that_lack_the_handler_of_a_task_are_counted() -> None:
    """As during a deploy: whoever claims it may give it back once more."""
    make_worker()
    make_worker(handlers={"something.else": "thread"})
    for task in (make_task(), make_task(state="scheduled")):
        answer = diagnose(task)
        assert answer.code in ("due", "scheduled")
        assert dict(answer.facts)["No handler in"].startswith("1 of 2 workers")


def test_a_graver_matter_is_told_before_flapping() -> None:
    task = flapping()
    Queue.objects.pause("default")

    assert diagnose(task).code == "queue_paused"


@pytest.mark.parametrize("column", ["acquired_at", "renewed_at", "created_at"])
def test_each_moment_that_lies_ahead_betrays_the_clock(column: str) -> None:
    make_worker(name="ann")
    task = make_task(state="running", holder="ann")
    Task.objects.heartbeat(task)
    Task.objects.filter(pk=task.pk).update(**{column: after(timedelta(seconds=30))})
    task.refresh_from_db()

    assert diagnose(task).code == "clock_skew"


def test_clocks_that_differ_by_a_moment_are_no_news() -> None:
    make_worker(name="ann")
    task = running_for_long(acquired_at=after(timedelta(seconds=1)))

    assert diagnose(task).code == "running_ok"


def test_a_waiting_task_of_a_clock_that_was_set_back_waits_for_its_time() -> None:
    task = make_task()
    ahead = after(timedelta(minutes=5))
    Task.objects.filter(pk=task.pk).update(created_at=ahead, scheduled_at=ahead)
    task.refresh_from_db()

    answer = diagnose(task)

    assert answer.code == "clock_skew" and stamp(task.scheduled_at) in answer.until


def test_a_paused_queue_says_who_paused_it_and_why() -> None:
    answer = diagnose(queue_paused())

    assert "default" in answer.headline and "the server is down" in answer.headline
    assert "olga" in dict(answer.facts).values()


@pytest.mark.parametrize("state", ["succeeded", "ready", "retrying"])
def test_a_limit_that_is_not_reached_is_nobodys_reason(state: str) -> None:
    make_worker()
    for key in ("k", "other", ""):
        make_task(state="running", concurrency_key=key, concurrency_limit=2 if key else None)
    make_task(state=state, concurrency_key="k", concurrency_limit=2)

    task = make_task(concurrency_key="k", concurrency_limit=2)

    assert diagnose(task).code == "due"


def test_another_worker_needs_no_message() -> None:
    task = over_celery()
    make_worker()

    assert diagnose(task).code == "due"


def test_a_relay_without_a_sign_of_life_is_none() -> None:
    task = over_celery("relay")
    Worker.objects.filter(role="relay").update(last_seen_at=after(-1.5 * Worker.LATE_AFTER))

    assert diagnose(task).code == "no_relay"


def test_celery_workers_hear_of_no_task_of_other_queues(settings: Settings) -> None:
    settings.TASK_QUEUE = {}
    task = over_celery("relay", published=True)

    answer = diagnose(task)

    assert answer.code == "no_worker" and "CELERY_QUEUES" in answer.headline


@pytest.mark.parametrize("column", ["scheduled_at", "acquired_at"])
def test_a_message_from_before_a_claim_or_its_time_tells_of_nothing(column: str) -> None:
    task = over_celery("relay", published=True)
    assert task.has_message and task.published_at is not None

    setattr(task, column, task.published_at + timedelta(seconds=1))

    assert not task.has_message


def test_nothing_is_offered_where_nothing_needs_doing() -> None:
    assert diagnose(due()).actions == []


def test_many_tasks_are_explained_by_one_reading_of_their_context() -> None:
    tasks: list[Any] = [make_task(state="stuck", holder="ann") for _ in range(5)]

    tasks.append(flapping())
    with CaptureQueriesContext(connection) as looking:
        context = read_context(tasks)
    with CaptureQueriesContext(connection) as queries:
        answers = [diagnose(task, context=context) for task in tasks]

    # There row locks are looked for, in a savepoint.
    assert len(looking) == (8 if connection.vendor == "postgresql" else 5) and len(queries) == 0
    assert {answer.code for answer in answers} == {"expired_holder_alive", "flapping"}
