"""``manage.py tasks``: it looks, and it calls the operator's verbs."""

from __future__ import annotations

import getpass
import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from leasing.functions import database_now
from tasks.diagnosis import diagnose
from tasks.models import Task
from tests.factories import make_task, make_tasks, make_worker
from tests.tasks.support import Reported, row_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("queues")]


def tasks(*options: object) -> str:
    out = StringIO()
    call_command("tasks", *map(str, options), stdout=out)
    return out.getvalue()


def count(said: str) -> int:
    """The number of changed tasks that the command prints."""
    number, _ = said.split(maxsplit=1)
    return int(number)


def listed(*options: object) -> list[int]:
    return [row["id"] for row in json.loads(tasks("list", "--json", *options))]


# Looking


@pytest.mark.parametrize(
    ("options", "states"),
    [
        ([], ["ready", "scheduled", "running", "stuck", "failed"]),
        (["--state", "ready"], ["ready"]),
        (["--state", "scheduled"], ["scheduled"]),
        (["--state", "running"], ["running", "stuck"]),
        (["--state", "failed"], ["failed"]),
        (["--state", "stuck"], ["stuck"]),
        (["--stuck"], ["stuck"]),
        (["--limit", "2"], ["stuck", "failed"]),
        (["--queue", "mail"], ["scheduled"]),
        (["--name", "jobs.echo"], ["failed"]),
        (["--queue", "mail", "--name", "jobs.echo"], []),
    ],
)
def test_it_lists_what_is_asked_for_the_newest_first(options: list[str], states: list[str]) -> None:
    more: dict[str, Any] = {
        "scheduled": {"queue": "mail"},
        "failed": {"name": "jobs.echo", "data": {}},
    }
    made = {
        make_task(state=state, **more.get(state, {})).pk: state
        for state in ("ready", "scheduled", "running", "stuck", "failed")
    }

    assert [made[pk] for pk in listed(*options)] == list(reversed(states))


@pytest.mark.parametrize("name", ["sort", "file"])
def test_the_names_of_a_handler_are_one(renamed: list[int], name: str) -> None:
    assert sorted(listed("--name", name)) == renamed
    assert count(tasks("cancel", "--name", name, "--yes", "--reason", "x")) == 2


def test_the_list_is_a_table_that_steers_no_terminal() -> None:
    task = make_task(state="running", holder="ann")
    Task.objects.filter(pk=task.pk).update(name="\x1b[2Jboo", task_data={"to": "\x1b[2Jann"})

    head, line = tasks("list").splitlines()

    columns = "ID STATE NAME QUEUE ATTEMPTS WHEN HOLDER ARGUMENTS"
    assert head.split() == columns.split()
    assert line.split()[:5] == [str(task.pk), "running", "\\x1b[2Jboo", "default", "1/10"]
    assert line.endswith("ann     to=\\x1b[2Jann")


def test_an_empty_list_says_so() -> None:
    assert tasks("list") == "No tasks.\n"
    assert tasks("list", "--state", "failed") == tasks("list", "--stuck") == "No task matches.\n"
    assert listed() == []


@pytest.mark.parametrize("command", ["show", "explain", "retry", "reschedule"])
def test_a_task_is_named_as_every_output_prints_it(command: str) -> None:
    task = make_task(state="ready" if command == "reschedule" else "failed")
    options = ["--in", "60"] if command == "reschedule" else []

    by_name = tasks(command, f"task:{task.pk}", *options)

    assert by_name.startswith("1 task" if options or command == "retry" else f"task:{task.pk} ")
    for wrong in ("task:", "task:x", "lease:1", "-1", "²"):
        with pytest.raises(CommandError, match="is no task: use 17 or task:17|arguments"):
            tasks(command, wrong)


def test_tasks_of_a_queue_or_handler_that_was_removed_are_still_found() -> None:
    task = make_task()
    Task.objects.filter(pk=task.pk).update(queue="former", name="jobs.former")

    assert listed("--queue", "former") == listed("--name", "jobs.former") == [task.pk]


def test_it_explains_a_task_and_tells_its_attempts() -> None:
    make_worker(name="bob")
    task = make_task(state="retrying", holder="ann")

    text = tasks("show", task.pk)

    title, following, *rest = text.splitlines()
    assert title.startswith(f"task:{task.pk} sample.sleep: ")
    assert "backoff, info" in following
    facts = dict(line.split(maxsplit=1) for line in rest[: rest.index("")])
    assert facts["status"] == "ready" and facts["last_error"] == "ValueError: no luck"
    assert json.loads(facts["task_data"]) == {"sleep_duration_seconds": 1}
    (attempt,) = rest[rest.index("") + 1 :]
    assert attempt.split()[1] == "1" and " failed " in attempt and " ann " in attempt
    assert "ValueError: no luck" in attempt
    assert "grant_id" not in text


def test_it_shows_the_result_of_a_task_that_succeeded() -> None:
    task = make_task(state="running", holder="ann")
    assert "task_output" not in tasks("show", task.pk)

    Task.objects.complete(task, {"pages": 5, "api_key": "hunter2"})

    (line,) = (each for each in tasks("show", task.pk).splitlines() if "task_output" in each)
    assert '"pages": 5' in line and "hunter2" not in line


def test_it_explains_a_task_as_json() -> None:
    task = make_task(state="retrying", holder="ann")

    facts = json.loads(tasks("show", task.pk, "--json"))

    assert (facts["id"], facts["status"], facts["attempts"]) == (task.pk, "ready", 1)
    assert facts["task_data"] == {"sleep_duration_seconds": 1}
    assert (facts["diagnosis"]["code"], facts["diagnosis"]["facts"]["Attempts"]) == (
        "backoff",
        "1 of 10",
    )
    (attempt,) = facts["history"]
    assert (attempt["number"], attempt["outcome"], attempt["holder"]) == (1, "failed", "ann")
    assert "Traceback" in attempt["traceback"] or attempt["error"] == "ValueError: no luck"
    assert "grant_id" not in facts


def test_a_task_that_never_ran_has_no_deadline() -> None:
    assert json.loads(tasks("show", make_task().pk, "--json"))["expires_at"] is None


# Acting


def test_whoever_runs_it_is_named(reported: Reported) -> None:
    tasks("retry", make_task(state="failed").pk)

    assert reported[-1][2] == {"by": getpass.getuser()}


def test_all_that_the_filters_let_by_is_retried_when_it_is_meant() -> None:
    failed = make_tasks(3, state="failed", queue="mail")
    other = make_task(state="failed")

    with pytest.raises(CommandError, match=r"\b3\b.* --yes .*\bretry\b"):
        tasks("retry", "--queue", "mail")
    assert not Task.objects.ready().exists()

    assert tasks("retry", "--queue", "mail", "--yes", "--json") == '{\n  "retried": 3\n}\n'
    assert {task.pk for task in Task.objects.ready()} == {task.pk for task in failed}
    assert row_of(other)["status"] == "failed"


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard", "reschedule"])
def test_nothing_is_done_to_all_tasks_by_mistake(verb: str) -> None:
    make_task(state="failed")

    with pytest.raises(CommandError, match="--state"):
        tasks(verb, "--yes", "--reason", "x")


@pytest.mark.parametrize(
    ("options", "queue", "seconds"),
    [
        (["--to-queue", "mail"], "mail", 3600),
        (["--in", "60"], "default", 60),
        (["--in", "10m"], "default", 600),
        (["--in", "1h30m"], "default", 5400),
        (["--in", "1.5h20s"], "default", 5420),
        (["--in", "2d"], "default", 172_800),
        (["--at", "now"], "default", 0),
        (["--at", "now", "--to-queue", "mail"], "mail", 0),
        (["--at", "{later}"], "default", 7200),
    ],
)
def test_waiting_tasks_are_moved(options: list[str], queue: str, seconds: float) -> None:
    task = make_task(state="scheduled")
    now = database_now("default")
    later = (now + timedelta(hours=2)).isoformat()

    said = tasks("reschedule", task.pk, *(option.format(later=later) for option in options))

    assert count(said) == 1
    row = row_of(task)
    assert row["queue"] == queue
    assert abs(row["scheduled_at"] - now - timedelta(seconds=seconds)) < timedelta(seconds=30)


def test_a_priority_lets_waiting_tasks_overtake() -> None:
    first, second = make_tasks(2)

    assert count(tasks("reschedule", second.pk, "--priority", -1)) == 1
    assert count(tasks("reschedule", second.pk, "--priority", 5)) == 1
    (claimed,) = Task.objects.claim("ann")
    assert (claimed.pk, claimed.scheduled_at) == (second.pk, second.scheduled_at)
    assert count(tasks("reschedule", "--state", "ready", "--yes", "--priority", 0)) == 1


def test_a_time_without_a_zone_is_of_the_current_one() -> None:
    task = make_task()

    with timezone.override("America/New_York"):
        tasks("reschedule", task.pk, "--at", "2030-06-01 12:00")

    assert row_of(task)["scheduled_at"].isoformat() == "2030-06-01T16:00:00+00:00"


def test_explain_gives_the_answers_and_what_can_be_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = make_task()
    call_command("tasks", "explain", str(task.pk))

    reported = capsys.readouterr().out
    assert reported.splitlines()[0] == f"task:{task.pk} sample.sleep: no_worker"
    answer = diagnose(task)
    assert [question for question, _ in answer.answers if question in reported] == [
        question for question, _ in answer.answers[:4]
    ]
    assert answer.headline in reported and answer.next in reported
    for action in answer.actions:
        assert f"{action.label}: {action.consequence}\n" in reported


def test_explain_tells_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    task = make_task(state="failed")
    call_command("tasks", "explain", str(task.pk), "--json")

    reported = json.loads(capsys.readouterr().out)
    assert (reported["id"], reported["code"]) == (task.pk, "exhausted")
    with pytest.raises(CommandError):
        call_command("tasks", "explain", "999999")


def test_secrets_in_a_payload_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    task = make_task()
    Task.objects.filter(pk=task.pk).update(task_data={"password": "hunter2"})
    for options in ([], ["--json"]):
        call_command("tasks", "show", str(task.pk), *options)

    assert "hunter2" not in capsys.readouterr().out
