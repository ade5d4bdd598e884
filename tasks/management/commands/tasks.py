from __future__ import annotations

import getpass
import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from leasing import audit
from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.humanize import ago, plural, stamp
from leasing.management.base import TablesCommand
from leasing.runtime.terminal import as_json, as_table, plain
from leasing.web.masking import masked
from tasks import monitoring
from tasks.diagnosis import diagnose
from tasks.exceptions import TaskError
from tasks.models import Task, TaskAttempt
from tasks.querysets import TaskQuerySet

#: Values of --state: the lists of ``Task.objects``.
STATES = ("ready", "scheduled", "running", "stuck", "succeeded", "failed", "cancelled")
#: The past tense of each verb.
DONE = {"retry": "retried", "cancel": "cancelled", "discard": "discarded", "move": "moved"}
#: Options that select tasks besides their ids.
FILTERS = ("state", "stuck", "queue", "name")
#: The verbs of the queryset that go by another name here.
VERBS = {"move": "reschedule"}


class Command(TablesCommand):
    help = "List tasks, explain one, or act on selected tasks."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="List tasks, newest first")
        _add_filters(listing)
        listing.add_argument(
            "--limit", type=int, default=50, help="Maximum number of tasks (default 50)"
        )
        listing.add_argument("--json", action="store_true", help="Print a JSON array")
        show = actions.add_parser("show", help="Show one task, its diagnosis and its attempts")
        show.add_argument("id", type=int, metavar="ID")
        show.add_argument("--json", action="store_true", help="Print a JSON object")
        explain = actions.add_parser("explain", help="Explain the state of one task")
        explain.add_argument("id", type=int, metavar="ID")
        explain.add_argument("--json", action="store_true", help="Print a JSON object")
        _add_verb(actions, "retry", "Make failed and cancelled tasks ready again")
        cancel = _add_verb(actions, "cancel", "Cancel tasks; running ones are asked to stop")
        cancel.add_argument("--reason", default="", help="Reason")
        _add_verb(actions, "discard", "Delete tasks that have ended")
        move = _add_verb(actions, "move", "Move waiting tasks to another queue or time")
        move.add_argument("--to-queue", metavar="NAME", help="Target queue")
        time = move.add_mutually_exclusive_group()
        time.add_argument("--at", metavar="TIME", help='Start time: "now" or an ISO 8601 time')
        time.add_argument(
            "--in",
            type=float,
            metavar="SECONDS",
            dest="delay",
            help="Start after this many seconds",
        )
        files = actions.add_parser(
            "monitoring", help="Print the Prometheus alerts or the Grafana dashboard"
        )
        files.add_argument("file", choices=("alerts", "dashboard"))
        files.add_argument(
            "--runbook", default=monitoring.RUNBOOK, help="Base URL of the runbook pages"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Files of the package are printed without a database.
        self.requires_migrations_checks = options["action"] != "monitoring"
        return super().execute(*args, **options)

    def handle(self, **options: Any) -> None:
        action = options["action"]
        if action in DONE:
            self._act(action, options)
        else:
            getattr(self, f"_{action}")(options)

    def _monitoring(self, options: dict[str, Any]) -> None:
        if options["file"] == "alerts":
            self.stdout.write(monitoring.alerts(options["runbook"]))
        else:
            self.stdout.write(monitoring.dashboard())

    # Looking

    def _list(self, options: dict[str, Any]) -> None:
        if options["limit"] < 1:
            raise CommandError("--limit must be at least 1.")
        tasks = list(_chosen(options).order_by("-pk")[: options["limit"]])
        if options["json"]:
            self.stdout.write(as_json([_facts(task) for task in tasks]))
            return
        now = _now()
        head = ("ID", "STATE", "NAME", "QUEUE", "ATTEMPTS", "WHEN", "HOLDER")
        self.stdout.write(as_table([head, *(_columns(task, now) for task in tasks)]))

    def _show(self, options: dict[str, Any]) -> None:
        task = _find(options["id"])
        diagnosis = diagnose(task)
        attempts = list(task.attempt_set.using(task._state.db))
        if options["json"]:
            explained = diagnosis.as_json()
            more = {name: masked(getattr(task, name)) for name in ("task_data", "task_output")}
            history = [_attempt(attempt) for attempt in attempts]
            self.stdout.write(
                as_json(_facts(task) | more | {"diagnosis": explained, "history": history})
            )
            return
        self.stdout.write(f"task:{task.pk} {plain(task.name)}: {plain(diagnosis.headline)}")
        self.stdout.write(f"{plain(diagnosis.next)} ({diagnosis.code}, {diagnosis.severity})")
        facts = {name: _shown(value) for name, value in _facts(task).items()}
        facts["task_data"] = json.dumps(masked(task.task_data))
        self.stdout.write(as_table([(name, value) for name, value in facts.items() if value]))
        if attempts:
            self.stdout.write("")
            self.stdout.write(as_table([_cells(attempt) for attempt in attempts]))

    def _explain(self, options: dict[str, Any]) -> None:
        task = _find(options["id"])
        diagnosis = diagnose(task)
        if options["json"]:
            self.stdout.write(as_json({"id": task.pk} | diagnosis.as_json()))
            return
        self.stdout.write(f"task:{task.pk} {plain(task.name)}: {diagnosis.code}")
        *answers, _ = diagnosis.answers
        self.stdout.write(as_table([(question, answer) for question, answer in answers]))
        for action in diagnosis.actions:
            self.stdout.write(f"{action.label}: {action.consequence}")

    # Acting

    def _act(self, action: str, options: dict[str, Any]) -> None:
        tasks = _chosen(options)
        if not options["ids"]:
            _refuse_unasked(action, tasks, options)
        by = options["by"] or getpass.getuser()
        details = _details(action, options)
        name = VERBS.get(action, action)
        verb: Callable[..., int] = getattr(tasks, name)
        filters = {each: options[each] for each in FILTERS if options[each]}
        try:
            with audit.recording(
                by,
                name,
                Task,
                keys=options["ids"],
                filter=filters | details if filters or details else None,
                asked=len(options["ids"]) or None,
                reason=details.get("reason", ""),
                via="command",
            ) as act:
                count = act.changed = verb(**details, by=by)
        except (TaskError, ValueError) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(as_json({DONE[action]: count}))
        else:
            self.stdout.write(f"{plural(count, 'task')} {DONE[action]}")


# Choosing


def _add_filters(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="Only tasks in this state")
    parser.add_argument("--queue", help="Only tasks in this queue")
    parser.add_argument("--name", help="Only tasks with this name")
    parser.add_argument(
        "--stuck", action="store_true", help="Only running tasks whose deadline has passed"
    )


def _add_verb(actions: Any, name: str, says: str) -> ArgumentParser:
    verb: ArgumentParser = actions.add_parser(name, help=says)
    verb.add_argument(
        "ids", type=int, nargs="*", metavar="ID", help="IDs of the tasks (or use the filters)"
    )
    _add_filters(verb)
    verb.add_argument(
        "--yes", action="store_true", help="Without IDs: act on all tasks that match the filters"
    )
    verb.add_argument("--by", help="Name of the operator (default: the current user)")
    verb.add_argument("--json", action="store_true", help="Print a JSON object")
    return verb


def _find(key: int) -> Task:
    task: Task | None = Task.objects.home().filter(pk=key).first()
    if task is None:
        raise CommandError(f"There is no task:{key}.")
    return task


def _chosen(options: Mapping[str, Any]) -> TaskQuerySet:
    tasks: TaskQuerySet = Task.objects.home()
    if options.get("ids"):
        tasks = tasks.filter(pk__in=options["ids"])
    if options["state"]:
        tasks = getattr(tasks, options["state"])()
    if options["stuck"]:
        tasks = tasks.stuck()
    for column in ("queue", "name"):
        if options[column] is not None:
            tasks = tasks.filter(**{column: options[column]})
    return tasks


def _refuse_unasked(action: str, tasks: TaskQuerySet, options: Mapping[str, Any]) -> None:
    if not any(options[name] for name in FILTERS):
        raise CommandError(
            "No tasks selected. Give IDs, or one of --state, --queue, --name, --stuck."
        )
    if not options["yes"]:
        count = tasks.count()
        match = f"{plural(count, 'task')} {'matches' if count == 1 else 'match'}"
        raise CommandError(f"{match}. Add --yes to {action} those that can be {DONE[action]}.")


def _details(action: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if action == "cancel":
        return {"reason": options["reason"]}
    if action != "move":
        return {}
    details: dict[str, Any] = {"queue": options["to_queue"]}
    if options["delay"] is not None:
        details["scheduled_at"] = _now() + timedelta(seconds=options["delay"])
    elif options["at"] is not None:
        details["scheduled_at"] = _moment(options["at"])
    return details


def _moment(text: str) -> datetime:
    if text == "now":
        return _now()
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(
            f"{plain(text)!r} is not a valid time. Use the form 2030-01-31T08:00:00+01:00."
        )
    return make_aware(moment) if is_naive(moment) else moment


def _now() -> datetime:
    return database_now(leasing_settings.DATABASE)


# Telling


def _facts(task: Task) -> dict[str, Any]:
    """Return the public columns of a task: not its grant, which proves a term."""
    columns = (
        *("id", "name", "queue", "status", "priority", "scheduled_at", "created_at"),
        *("started_at", "processed_at", "attempts", "max_attempts", "holder", "expires_at"),
        *("fencing_token", "unique_key", "concurrency_key", "progress", "cancel_requested_at"),
        "last_error",
    )
    facts = {column: getattr(task, column) for column in columns}
    return facts if task.grants else facts | {"expires_at": None}


def _columns(task: Task, now: datetime) -> tuple[str, ...]:
    moment = task.processed_at or task.acquired_at or task.scheduled_at
    if task.status == "ready":
        moment = task.scheduled_at
    attempts = f"{task.attempts}/{task.max_attempts}"
    holder = task.holder if task.status == "running" else ""
    when = ago(moment, now)
    return str(task.pk), task.status, task.name, task.queue, attempts, when, holder


def _attempt(attempt: TaskAttempt) -> dict[str, Any]:
    names = ("number", "outcome", "holder", "started_at", "ended_at", "fencing_token", "error")
    return {name: getattr(attempt, name) for name in (*names, "traceback", "refused_verb")}


def _cells(attempt: TaskAttempt) -> tuple[str, ...]:
    error = attempt.error.partition("\n")[0]
    refused = f"late {attempt.refused_verb} refused" if attempt.refused_verb else ""
    moment = stamp(attempt.ended_at)
    return f"attempt {attempt.number}", moment, attempt.outcome, attempt.holder, refused, error


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return stamp(value)
    if value is None or value == "":
        return ""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
