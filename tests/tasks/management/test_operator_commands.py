"""``manage.py queues``, ``workers``, ``schedules`` and ``tasks enqueue``: what operators see and
do from a shell, by the verbs of the pages."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from leasing.functions import after, database_now
from leasing.models import AuditEntry
from tasks.models import Queue, Schedule, Task
from tasks.sample import SLEEP
from tests.factories import make_task, make_worker
from tests.tasks.support import Handlers

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("queues")]


def said(*options: object) -> str:
    out = StringIO()
    call_command(*map(str, options), stdout=out)
    return out.getvalue()


def told(*options: object) -> Any:
    return json.loads(said(*options, "--json"))


def cells(text: str) -> list[list[str]]:
    """The cells of a printed table, without its head."""
    head, *lines = text.splitlines()
    starts = [0, *(at + 2 for at in range(len(head) - 2) if head[at : at + 2] == "  ")]
    starts = [at for at in starts if at < len(head) and head[at] != " "]
    ends = [*starts[1:], None]
    return [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines]


def entry() -> AuditEntry:
    latest: AuditEntry = AuditEntry.objects.latest("pk")
    return latest


# Queues


def test_queues_are_listed_with_what_waits_and_who_serves_them() -> None:
    make_worker(name="ann", queues=["default"])
    make_task()
    make_task(state="scheduled", queue="mail")
    make_task(state="running")
    Queue.objects.pause("mail", by="olga", reason="SMTP is down")

    default, mail = cells(said("queues", "list"))
    assert default[:5] == ["default", "open", "1", "0", "1"] and default[5] and default[6] == "1"
    assert mail == ["mail", "paused", "0", "1", "0", "", "0", "by olga: SMTP is down"]
    default, mail = told("queues", "list")
    assert (default["ready"], default["running"], default["paused_at"]) == (1, 1, None)
    assert (mail["state"], mail["scheduled"], mail["reason"]) == ("paused", 1, "SMTP is down")


def test_a_queue_is_paused_with_a_reason_and_resumed() -> None:
    pause = ("queues", "pause", "mail", "default", "--reason", "SMTP is down", "--by", "olga")
    assert said(*pause) == "2 queues paused\n"
    queue = Queue.objects.get(name="mail")
    assert (queue.paused_by, queue.reason) == ("olga", "SMTP is down")
    assert (entry().verb, entry().by, entry().via) == ("pause", "olga", "command")
    assert (entry().reason, entry().changed) == ("SMTP is down", 2)
    assert said(*pause) == "0 queues paused. Not changed: 2 already paused\n"

    resumed = told("queues", "resume", "mail", "--reason", "it is back")
    assert resumed == {"resumed": 1} and entry().reason == "it is back"
    assert told("queues", "resume", "mail") == {"resumed": 0, "skipped": {"not paused": 1}}
    assert list(Queue.objects.paused().values_list("name", flat=True)) == ["default"]


@pytest.mark.parametrize(
    ("listing", "none"),
    [
        (["workers", "list"], "No workers."),
        (["workers", "list", "--state", "live"], "No worker is live."),
        (["schedules", "list"], "No schedules."),
        (["api_tokens", "list"], "No tokens."),
        (["api_tokens", "list", "--state", "revoked"], "No token is revoked."),
        (["run_recovery", "--once"], "Nothing to repair, nothing to report."),
    ],
)
def test_a_list_without_rows_says_so(listing: list[str], none: str) -> None:
    assert said(*listing) == f"{none}\n"


# Workers


def test_slots_whose_handler_does_not_return_are_listed_as_blocked() -> None:
    make_worker(name="ann", slots={"thread": 4}, blocked={"thread": 3})
    (row,) = cells(said("workers", "list"))
    assert row[4] == "3 of 4 threads; 3 blocked"


def test_workers_are_listed_by_state_with_what_they_hold() -> None:
    for name, state in (("ann", "live"), ("bea", "late"), ("cid", "gone"), ("dan", "stopped")):
        make_worker(name=name, state=state)
    task = make_task(state="running", holder="ann")

    rows = cells(said("workers", "list"))
    assert [row[:3] for row in rows] == [
        ["cid", "gone", "worker"],
        ["bea", "late", "worker"],
        ["ann", "live", "worker"],
    ]
    (ann,) = told("workers", "list", "--state", "live")
    assert (ann["name"], ann["tasks"]) == ("ann", [task.pk])
    assert "1 of 4 threads" in rows[2]
    assert ann["slots"] == {"thread": {"total": 4, "busy": 1, "blocked": 0}}
    assert [each["name"] for each in told("workers", "list", "--state", "stopped")] == ["dan"]


@pytest.mark.parametrize("command", [("workers",), ("tasks", "workers")], ids=" ".join)
@pytest.mark.parametrize("state", ["live", "late", "gone", "stopped"])
def test_a_check_of_a_worker_exits_with_0_only_while_it_is_live(
    state: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_worker(name="ann", state=state)
    if state == "live":
        call_command(*command, "check", "ann")
    else:
        with pytest.raises(SystemExit) as ended:
            call_command(*command, "check", "ann")
        assert ended.value.code == 1
    assert capsys.readouterr().out.startswith(f"ann is {state}, seen ")


def test_a_check_of_a_parent_exits_with_0_only_while_all_of_its_workers_are_live(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for index, state in ((1, "stopped"), (2, "live"), (1, "live")):
        make_worker(fleet="web", fleet_index=index, state=state)
    make_worker(fleet="mail", fleet_index=1, state="gone")

    call_command("workers", "check", "web")
    assert capsys.readouterr().out == "Of web worker 1 is live, worker 2 is live.\n"
    assert [each["fleet_index"] for each in told("workers", "check", "web")] == [1, 2]

    make_worker(fleet="web", fleet_index=3, state="late")
    with pytest.raises(SystemExit) as ended:
        call_command("workers", "check", "web")
    assert ended.value.code == 1
    assert capsys.readouterr().out.endswith("worker 2 is live, worker 3 is late.\n")


def test_a_check_of_a_parent_leaves_out_what_was_killed_together_with_its_predecessor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody has signed these off: not to be live for a day would be no fault of the new one."""
    for fleet, index, state in (
        *(("web", 1, "gone"), ("web", 2, "late"), ("web", 1, "live"), ("web", 2, "live")),
        *(("mail", 1, "live"), ("web", 3, "live")),
    ):
        make_worker(fleet=fleet, fleet_index=index, state=state)

    call_command("workers", "check", "web")

    told = "Of web worker 1 is live, worker 2 is live, worker 3 is live.\n"
    assert capsys.readouterr().out == told


# Schedules


@pytest.fixture
def nightly() -> Schedule:
    schedule: Schedule = Schedule.objects.create(
        name="nightly",
        task_name=SLEEP,
        task_data={"sleep_duration_seconds": 1},
        every=timedelta(hours=24),
        next_at=database_now("default") + timedelta(hours=2),
    )
    return schedule


def test_schedules_are_listed_with_when_they_are_due_and_were(nightly: Schedule) -> None:
    Schedule.objects.create(name="hourly", task_name="no.such", every=timedelta(hours=1))
    Schedule.objects.filter(name="nightly").run_now(by="olga")
    task = Task.objects.get()

    hourly, daily = cells(said("schedules", "list"))
    assert hourly[:2] == ["hourly", "unknown task"] and hourly[5:] == ["no.such", ""]
    assert daily[:2] == ["nightly", "active"] and daily[4].endswith(f" (task:{task.pk})")
    assert daily[3].startswith("in ") and daily[5:] == [SLEEP, ""]
    facts = {each["name"]: each for each in told("schedules", "list")}
    assert facts["nightly"]["last_task"] == task.pk and facts["nightly"]["next_at"]
    assert "no.such" in facts["hourly"]["why"]


def test_a_paused_schedule_is_listed_with_who_paused_it_and_why(nightly: Schedule) -> None:
    said("schedules", "pause", "nightly", "--by", "olga", "--reason", "month end")
    (row,) = cells(said("schedules", "list"))
    assert (row[1], row[-1]) == ("paused", "by olga: month end")
    Schedule.objects.update(next_at=database_now("default") - timedelta(hours=25))
    (row,) = cells(said("schedules", "list"))
    assert row[-1] == "by olga: month end; 2 skipped"
    (facts,) = told("schedules", "list")
    assert (facts["reason"], facts["skipped"]) == ("month end", 2)
    names = {str(nightly.pk): "nightly"}
    assert (entry().key, entry().target["names"]) == (str(nightly.pk), names)


def test_a_schedule_that_runs_names_its_task_and_why_there_is_none(nightly: Schedule) -> None:
    Schedule.objects.update(overlap=False)
    Schedule.objects.create(name="hourly", task_name="no.such", every=timedelta(hours=1))
    first = said("schedules", "run", "nightly", "hourly")
    task = Task.objects.get()
    assert first.splitlines() == [
        "1 task enqueued. Not changed: 1 without a handler here",
        f"nightly: task:{task.pk}",
    ]
    assert told("schedules", "run", "nightly") == {
        "enqueued": 0,
        "skipped": {"whose previous task has not ended": 1},
        "tasks": {},
    }


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_an_unknown_schedule_is_named_and_none_is_changed(nightly: Schedule, verb: str) -> None:
    with pytest.raises(CommandError, match="no schedule nigthly"):
        said("schedules", verb, "nightly", "nigthly")
    assert not AuditEntry.objects.exists()


# tasks enqueue


def test_a_task_is_enqueued_with_data_queue_priority_time_and_key(handlers: Handlers) -> None:
    handlers["mail.send"] = lambda ctx, to: None
    now = database_now("default")

    facts = told(
        *("tasks", "enqueue", "mail.send", "--data", '{"to": "ann"}', "--queue", "mail"),
        *("--priority", 5, "--in", 60, "--unique-key", "ann", "--by", "olga", "--reason", "again"),
    )

    task = Task.objects.get()
    assert (facts["id"], facts["is_duplicate"]) == (task.pk, False)
    assert (task.name, task.task_data, task.queue) == ("mail.send", {"to": "ann"}, "mail")
    assert (task.priority, task.unique_key) == (5, "ann")
    assert timedelta(seconds=50) < task.scheduled_at - now < timedelta(seconds=70)
    assert (entry().verb, entry().key, entry().by) == ("enqueue", str(task.pk), "olga")
    assert (entry().reason, entry().changed) == ("again", 1)


def test_an_enqueue_says_what_happens_next_and_which_task_has_the_key() -> None:
    data = '{"sleep_duration_seconds": 1}'
    enqueue = ("tasks", "enqueue", SLEEP, "--data", data, "--unique-key", "a")
    first = said(*enqueue).splitlines()
    task = Task.objects.get()
    assert first[0] == f"task:{task.pk} enqueued in default" and "No worker" in first[1]

    assert said(*enqueue).splitlines()[0] == f"Nothing enqueued: task:{task.pk} has this unique key"
    assert entry().changed == 0 and Task.objects.count() == 1


# No task found


def test_a_task_that_is_not_there_exits_with_1_and_the_others_are_changed() -> None:
    task = make_task(state="failed")
    with pytest.raises(CommandError, match=r"There is no task:98, task:99\.") as refused:
        said("tasks", "retry", task.pk, 99, 98)
    assert refused.value.returncode == 1
    task.refresh_from_db()
    assert task.status == "ready"


@pytest.mark.parametrize("options", [["99"], ["--state", "failed", "--yes"], ["--queue", "mail"]])
def test_nothing_to_act_on_exits_with_1_and_leaves_no_entry(options: list[str]) -> None:
    with pytest.raises(CommandError, match=r"task:99|No task matches"):
        said("tasks", "retry", *options)
    assert not AuditEntry.objects.exists()


def test_what_stays_as_it_is_is_told_with_the_reason() -> None:
    failed, running = make_task(state="failed"), make_task(state="running")
    other = make_task(state="failed", queue="mail")
    text = said("tasks", "retry", failed.pk, running.pk, "--reason", "fixed")
    assert text == "1 task retried. Not changed: 1 running\n"
    assert (entry().skipped, entry().reason) == ({"running": 1}, "fixed")
    filtered = said("tasks", "retry", failed.pk, other.pk, "--queue", "mail")
    assert filtered == "1 task retried. Not changed: 1 not matching the filters\n"


def test_a_task_has_the_state_and_the_arguments_that_the_pages_show() -> None:
    stuck, waiting = make_task(state="stuck"), make_task(state="scheduled")
    stalled = make_task(state="running")
    Task.objects.filter(pk=stalled.pk).update(
        progress_timeout=timedelta(seconds=9), progressed_at=after(timedelta(seconds=-10))
    )
    Task.objects.filter(pk=waiting.pk).update(task_data={"token": "t0p", "customer": "hooli"})
    listed = cells(said("tasks", "list"))
    states = {row[0]: row[1] for row in listed}
    assert {row[0]: row[-1] for row in listed}[str(waiting.pk)] == "token=••••••, customer=hooli"
    assert states[str(waiting.pk)] == "scheduled"
    assert states[str(stuck.pk)] == states[str(stalled.pk)] == "stuck"
    for options in (["--stuck"], ["--state", "stuck"]):
        assert [row["id"] for row in told("tasks", "list", *options)] == [stalled.pk, stuck.pk]


# Pruning


def test_pruning_tells_programs_too() -> None:
    assert told("prune_leases") == {"leases": 0, "events": 0, "once_keys": 0, "audit_entries": 0}
    assert set(told("prune_tasks", "--state", "failed", "--days", "1")) == {"failed"}
