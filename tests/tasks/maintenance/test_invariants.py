"""Invariants: each violation is made by hand, then looked for and put right."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from leasing.functions import DbNow, after, database_now
from tasks.maintenance import invariants, recovery
from tasks.models import Queue, Schedule, Task, TaskStatus, WorkerState
from tasks.querysets.base import STOPPED_WITHIN
from tests.factories import make_task, make_tasks, make_worker
from tests.leasing.support import OtherSession
from tests.limits import Limits
from tests.tasks.support import Reported, row_of

pytestmark = pytest.mark.django_db

AHEAD, PAST = after(timedelta(minutes=10)), after(timedelta(minutes=-10))


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "totals", recovery.Totals())
    monkeypatch.setattr(recovery, "_suspects", {})


@pytest.fixture(autouse=True)
def _served() -> None:
    """Somebody serves every queue, and has code for everything."""
    make_worker(name="server")


def change(task: Task, **columns: Any) -> Task:
    Task.objects.filter(pk=task.pk).update(**columns)
    return task


def running_under_a_worker(state: str) -> Task:
    worker = make_worker(state=state)
    task = make_task(state="running", holder=worker.name)
    return task


def asked(task: Task) -> Task:
    Task.objects.filter(pk=task.pk).cancel()
    return task


#: The state, how it comes about, and what a repair makes of the row.
REPAIRED: list[tuple[str, str, Callable[[], Task], dict[str, Any]]] = [
    (
        "expired",
        "its worker died",
        lambda: make_task(state="stuck"),
        {"status": "ready"},
    ),
    (
        "expired",
        "its worker died at its last attempt",
        lambda: make_task(state="stuck", max_attempts=1),
        {"status": "failed"},
    ),
    (
        "kept_key",
        "ended with a key whose window is over",
        lambda: change(
            make_task(state="succeeded"), unique_key="k", unique_for="window", unique_until=PAST
        ),
        {"unique_key": None},
    ),
    (
        "open_attempt",
        "ended under an open lease",
        lambda: change(make_task(state="succeeded"), released_at=None, expires_at=AHEAD),
        {},
    ),
    (
        "open_attempt",
        "waiting under an open lease",
        lambda: change(make_task(state="recovered"), expires_at=AHEAD),
        {},
    ),
    (
        "unseen_cancel",
        "given back before it was seen",
        lambda: change(make_task(state="returned"), cancel_requested_at=PAST),
        {"status": "cancelled"},
    ),
    (
        "unseen_cancel",
        "waiting for a retry, with a key",
        lambda: change(make_task(state="retrying", unique_key="k"), cancel_requested_at=PAST),
        {"status": "cancelled", "unique_key": None},
    ),
    (
        "unseen_cancel",
        "with a key for a window that is not over",
        lambda: change(
            make_task(unique_key="k"),
            cancel_requested_at=PAST,
            unique_for="window",
            unique_until=AHEAD,
        ),
        {"status": "cancelled", "unique_key": "k"},
    ),
    (
        "left_behind",
        "enqueued while its parent was being cancelled",
        lambda: make_task(parent=make_task(state="cancelled")),
        {"status": "cancelled", "cancel_requested_by": "recovery"},
    ),
    (
        "left_behind",
        "enqueued after its parent was asked to stop",
        lambda: make_task(parent=asked(make_task(state="running"))),
        {"status": "cancelled", "last_error": "cancelled by recovery: with its parent"},
    ),
    (
        "left_behind",
        "running, with a parent that is cancelled",
        lambda: make_task(state="running", parent=make_task(state="cancelled")),
        {"status": "running", "cancel_requested_by": "recovery"},
    ),
]
REPORTED: list[tuple[str, str, Callable[[], Task]]] = [
    ("holder_gone", "its worker is gone", lambda: running_under_a_worker(WorkerState.GONE)),
    ("holder_gone", "its worker has stopped", lambda: running_under_a_worker(WorkerState.STOPPED)),
    (
        "no_worker",
        "a queue that nobody serves",
        lambda: change(make_task(), queue="abandoned"),
    ),
    ("unknown_task", "code that nobody has", lambda: change(make_task(), name="forgotten")),
    (
        "unknown_task",
        "given back for lack of code",
        lambda: change(make_task(), name="forgotten", scheduled_at=after(timedelta(seconds=50))),
    ),
    (
        "ignored_cancel",
        "its handler asks nothing",
        lambda: change(make_task(state="running"), cancel_requested_at=PAST),
    ),
]
#: Sound rows that only just are not in a state that violates an invariant.
SOUND: list[tuple[str, Callable[[], Task]]] = [
    ("ready", lambda: make_task()),
    ("scheduled", lambda: make_task(state="scheduled")),
    ("running", lambda: make_task(state="running", holder="server")),
    ("a holder that is no worker", lambda: make_task(state="running", holder="over-http")),
    ("a worker that is late", lambda: running_under_a_worker(WorkerState.LATE)),
    ("succeeded", lambda: make_task(state="succeeded")),
    ("failed", lambda: make_task(state="failed")),
    ("retrying with a key until it ends", lambda: make_task(state="retrying", unique_key="k")),
    ("recovered", lambda: make_task(state="recovered")),
    ("returned", lambda: make_task(state="returned")),
    ("running in a slot", lambda: change(make_task(state="running"), slot="k:0")),
    (
        "ended within its window",
        lambda: change(
            make_task(state="succeeded"), unique_key="k", unique_for="window", unique_until=AHEAD
        ),
    ),
    (
        "waiting with a key for waiting",
        lambda: change(make_task(unique_key="k"), unique_for="waiting"),
    ),
    (
        "running with a key for the first attempt",
        lambda: change(make_task(state="running", unique_key="k"), unique_for="running"),
    ),
    (
        "given back with a key for the first attempt",
        lambda: change(make_task(state="returned", unique_key="k"), unique_for="running"),
    ),
    (
        "given back by a clock that was set back since",
        lambda: change(
            make_task(state="succeeded"),
            released_at=after(timedelta(seconds=60)),
            expires_at=after(timedelta(seconds=50)),
        ),
    ),
    (
        "just asked to stop",
        lambda: change(make_task(state="running"), cancel_requested_at=DbNow()),
    ),
    (
        "cancelled when asked to",
        lambda: change(make_task(state="cancelled"), cancel_requested_at=PAST),
    ),
    (
        "a child whose parent is open",
        lambda: make_task(parent=make_task(state="running", holder="server")),
    ),
    (
        "a child whose parent has succeeded when it was asked to stop",
        lambda: make_task(parent=change(make_task(state="succeeded"), cancel_requested_at=PAST)),
    ),
    (
        "a child whose parent has failed",
        lambda: make_task(parent=make_task(state="failed")),
    ),
    (
        "a child whose parent was cancelled long ago",
        lambda: make_task(
            parent=change(make_task(state="cancelled"), processed_at=after(-2 * STOPPED_WITHIN))
        ),
    ),
    (
        "a child that was asked to stop with its parent",
        lambda: asked(make_task(state="running", parent=make_task(state="cancelled"))),
    ),
    (
        "a child that has ended before its parent",
        lambda: make_task(state="succeeded", parent=make_task(state="cancelled")),
    ),
    (
        "to be run tomorrow, by code that is to be deployed",
        lambda: change(make_task(state="scheduled"), name="forgotten"),
    ),
    (
        "to be run tomorrow, in a queue to be served",
        lambda: change(make_task(state="scheduled"), queue="abandoned"),
    ),
]


@pytest.mark.parametrize(
    ("kind", "make", "becomes"),
    [
        pytest.param(kind, make, becomes, id=f"{kind}: {how}")
        for kind, how, make, becomes in REPAIRED
    ],
)
def test_what_can_be_repaired_is(
    kind: str, make: Callable[[], Task], becomes: dict[str, Any], reported: Reported
) -> None:
    task = make()
    before = row_of(task)
    reported.clear()

    looked = recovery.examine(dry_run=True)

    assert [(each.kind, each.count, each.repaired) for each in looked.findings] == [(kind, 1, 0)]
    assert looked.findings[0].keys == [task.pk]
    assert (row_of(task), reported, recovery.totals.repaired) == (before, [], {})

    done = recovery.examine()

    assert [(each.kind, each.count, each.repaired) for each in done.findings] == [(kind, 1, 1)]
    row = row_of(task)
    assert {column: row[column] for column in becomes} == becomes
    assert recovery.totals.repaired == {kind: 1}
    told = ("recovered" if kind == "expired" else "repaired", task.pk)
    assert told in [each[:2] for each in reported]
    assert recovery.examine().findings == []


def test_a_lease_that_was_left_open_is_closed_now() -> None:
    task = change(make_task(state="succeeded"), released_at=None, expires_at=AHEAD)

    recovery.examine()

    row = row_of(task)
    assert row["expires_at"] <= row["released_at"] <= database_now("default")
    assert not Task.objects.active().exists()


@pytest.mark.parametrize(
    ("kind", "make"),
    [pytest.param(kind, make, id=f"{kind}: {how}") for kind, how, make in REPORTED],
)
def test_what_cannot_be_repaired_is_reported_once(
    kind: str, make: Callable[[], Task], reported: Reported
) -> None:
    task = make()
    before = row_of(task)
    reported.clear()

    assert [each.kind for each in recovery.examine(dry_run=True).findings] == [kind]
    assert reported == []
    for _ in range(2):
        (finding,) = recovery.examine().findings
        assert (finding.kind, finding.count, finding.repaired) == (kind, 1, 0)
        assert (finding.remedy, finding.keys) == ("", [task.pk])

    assert row_of(task) == before
    assert [(name, pk, said["kind"]) for name, pk, said in reported] == [
        ("suspected", task.pk, kind)
    ]
    assert recovery.totals.suspected == {kind: 1}


def test_many_suspects_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    make_tasks(12)
    Task.objects.update(name="forgotten")
    caplog.clear()

    recovery.examine()

    (line,) = [record for record in caplog.records if record.name == "tasks.recovery"]
    assert line.getMessage().endswith(", ...")
    assert line.getMessage().count(" forgotten") == 10


def test_names_of_many_handlers_and_queues_are_compared() -> None:
    """As parameters of one statement they would be more than SQLite takes."""
    names = [f"jobs.{number}" for number in range(3_000)]
    queues = [f"queue {number}" for number in range(100)]
    make_worker(queues=queues, handlers=dict.fromkeys(names, "thread"))
    change(make_task(), name=names[-1], queue=queues[-1])
    change(make_task(), name="elsewhere", queue="unserved")
    lost = [change(make_task(), name="forgotten", queue=queue) for queue in queues[:2]]

    keys = [each.keys for each in recovery.examine(dry_run=True).findings]
    assert [task.pk for task in lost] in keys
    found = invariants.unknown_by_name()
    assert {name: unknown.count for name, unknown in found.items()} == {"forgotten": 2}


@pytest.mark.parametrize(
    "make", [pytest.param(make, id=what) for what, make in SOUND], ids=lambda what: what
)
def test_sound_rows_are_left_alone(make: Callable[[], Task]) -> None:
    task = make()
    before = row_of(task)

    assert recovery.examine().findings == []
    assert row_of(task) == before


def test_each_state_of_the_catalogue_is_made_by_a_test() -> None:
    made = {kind for kind, *_ in REPAIRED} | {kind for kind, *_ in REPORTED} | {"unplanned"}

    assert {invariant.kind for invariant in invariants.INVARIANTS} == made
    assert all(f"    {kind} " in (invariants.__doc__ or "") for kind in made)


def test_names_are_looked_for_among_the_workers_of_the_queue() -> None:
    make_worker(queues=["mail"], handlers={"mail.only": "thread"})
    task = change(make_task(), name="mail.only")

    assert [each.keys for each in recovery.examine().findings] == [[task.pk]]


def test_a_queue_that_is_paused_needs_no_worker() -> None:
    change(make_task(), queue="mail")
    Queue.objects.create(name="mail", paused_at=DbNow())

    assert recovery.examine().findings == []


def test_a_queue_whose_tasks_somebody_holds_is_served() -> None:
    held = make_task(state="running", holder="a remote worker")
    for task in (held, make_task()):
        change(task, queue="mail")

    assert recovery.examine().findings == []
    change(held, expires_at=PAST)
    assert "no_worker" in [each.kind for each in recovery.examine(dry_run=True).findings]


def test_what_expired_under_a_worker_that_is_gone_is_told_once() -> None:
    task = running_under_a_worker(WorkerState.GONE)
    change(task, expires_at=F("acquired_at"))

    assert [each.kind for each in recovery.examine(dry_run=True).findings] == ["expired"]


# Schedules


def test_a_schedule_without_a_next_moment_gets_one() -> None:
    schedule = Schedule.objects.create(name="n", task_name="sample.sleep", every=timedelta(days=1))

    (finding,) = recovery.examine().findings

    assert (finding.kind, finding.repaired, finding.keys) == ("unplanned", 1, [schedule.pk])
    schedule.refresh_from_db()
    assert schedule.next_at is not None
    assert recovery.examine().findings == []


def test_a_schedule_that_nobody_here_could_serve_is_reported() -> None:
    Schedule.objects.create(name="nightly", task_name="forgotten", every=timedelta(days=1))

    (finding,) = recovery.examine().findings

    assert (finding.kind, finding.count, finding.repaired) == ("unplanned", 1, 0)


@pytest.mark.parametrize("columns", [{"paused_at": DbNow()}, {"next_at": DbNow()}])
def test_a_schedule_that_is_paused_or_planned_is_sound(columns: dict[str, Any]) -> None:
    Schedule.objects.create(name="n", task_name="sample.sleep", every=timedelta(days=1), **columns)

    assert recovery.examine().findings == []


# Many at once


def test_more_than_a_batch_is_repaired_in_one_look(limits: Limits) -> None:
    limits(sweep_batch=2)
    tasks = make_tasks(5)
    Task.objects.update(cancel_requested_at=PAST)

    (finding,) = recovery.examine().findings

    assert (finding.count, finding.repaired) == (5, 5)
    assert Task.objects.cancelled().count() == len(tasks)


def test_a_row_that_became_sound_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a database without row locks: it was claimed between the look and the update."""
    task = make_task(unique_key="k")
    change(task, cancel_requested_at=PAST)

    def lock_too_late(rows: Any, skip_locked: bool) -> Any:
        keys = list(rows.values_list("pk", flat=True))
        change(task, cancel_requested_at=None)
        return Task.objects.filter(pk__in=keys).order_by("pk")

    monkeypatch.setattr(invariants, "lock", lock_too_late)

    (finding,) = recovery.examine().findings

    assert (finding.count, finding.repaired) == (1, 0)
    assert row_of(task)["status"] == TaskStatus.READY


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_has_locked_is_passed_over(other_session: OtherSession) -> None:
    locked, free = make_tasks(2)
    Task.objects.update(cancel_requested_at=PAST)
    other_session.begin()
    other_session.run(lambda: Task.objects.select_for_update().get(pk=locked.pk))

    (finding,) = recovery.examine().findings

    assert (finding.count, finding.repaired) == (2, 1)
    assert row_of(free)["status"] == TaskStatus.CANCELLED


# The command


def printed(*options: str) -> str:
    out = StringIO()
    call_command("run_recovery", "--once", *options, stdout=out)
    return out.getvalue()


def test_a_dry_run_prints_what_would_be_done_and_does_nothing() -> None:
    stuck, gone = make_task(state="stuck"), running_under_a_worker(WorkerState.GONE)
    before = row_of(stuck), row_of(gone)

    text = printed("--dry-run")

    assert f"expired: 1 (task:{stuck.pk})\n" in text
    assert "  to be repaired: set ready, or failed" in text
    assert f"holder_gone: 1 (task:{gone.pk})\n" in text
    assert "  reported only\n" in text
    assert text.endswith("1 to be repaired, 1 reported only\n")
    assert (row_of(stuck), row_of(gone)) == before


def test_a_look_prints_what_was_done() -> None:
    make_tasks(12, state="stuck")

    text = printed()

    assert ", ...)\n" in text
    assert "  12 repaired: " in text
    assert text.endswith("12 repaired, 0 reported only\n")
    assert printed() == "Nothing to repair, nothing to report.\n"


def test_the_report_is_there_as_json() -> None:
    task = make_task(state="stuck")

    report = json.loads(printed("--json", "--dry-run"))

    assert report["dry_run"] is True
    assert [(each["kind"], each["keys"]) for each in report["findings"]] == [("expired", [task.pk])]


@pytest.mark.parametrize("option", ["--dry-run", "--json"])
def test_what_goes_with_one_look_is_refused_without_it(option: str) -> None:
    with pytest.raises(CommandError, match="need --once"):
        call_command("run_recovery", option)


def test_where_nothing_is_amiss_one_query_says_so(django_assert_num_queries: Any) -> None:
    make_worker()
    make_task(state="running")
    make_task(state="succeeded")
    make_task(state="scheduled")

    with django_assert_num_queries(1):
        assert recovery.examine().findings == []
