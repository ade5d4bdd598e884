"""Options of ``manage.py tasks`` by which tasks are chosen, moved and enqueued."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.humanize import plural
from leasing.management.base import duration
from leasing.management.subcommands import add_operator
from leasing.runtime.shutdown import ExitCode
from leasing.runtime.terminal import plain
from tasks import registry
from tasks.bounds import PRIORITIES, check_between
from tasks.conf import task_settings
from tasks.exceptions import TaskError, UnknownQueue, UnknownTask
from tasks.models import Task
from tasks.querysets import TaskQuerySet
from tasks.registry import check_queue

#: Values of --state: the lists of ``Task.objects``.
STATES = ("ready", "scheduled", "running", "stuck", "succeeded", "failed", "cancelled")
#: The past tense of each verb.
DONE = {
    "retry": "retried",
    "reschedule": "rescheduled",
    "cancel": "cancelled",
    "discard": "discarded",
}
#: Options that select tasks other than by id.
FILTERS = ("state", "stuck", "queue", "name")


def add_filters(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="Only tasks in this state")
    parser.add_argument("--queue", help="Only tasks in this queue")
    parser.add_argument("--name", help="Only tasks of this handler: its name or an alias")
    parser.add_argument("--stuck", action="store_true", help="The same as --state stuck")


def add_verb(verb: ArgumentParser, **reason: Any) -> None:
    verb.add_argument(
        "ids", type=key_of, nargs="*", metavar="ID", help="IDs of the tasks (or use the filters)"
    )
    add_filters(verb)
    verb.add_argument(
        "--yes", action="store_true", help="Without IDs: act on all tasks that match the filters"
    )
    add_operator(verb, **reason)


def add_time(parser: ArgumentParser) -> None:
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--at", metavar="TIME", help='Start time: "now" or an ISO 8601 time')
    time.add_argument(
        "--in",
        type=duration,
        metavar="DURATION",
        dest="delay",
        help="Start after this time: 90, 10m, 1h30m",
    )


def add_enqueue(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of the handler")
    parser.add_argument(
        "--data", default="{}", metavar="JSON", help="Arguments of the handler, as a JSON object"
    )
    parser.add_argument("--queue", help="Queue (default: the handler's)")
    parser.add_argument("--priority", type=int, default=0, help="Higher goes first (default 0)")
    parser.add_argument(
        "--unique-key", metavar="KEY", help="Enqueue nothing while a task has this unique key"
    )
    add_time(parser)
    add_operator(parser)


def key_of(text: str) -> int:
    """Return the key of the task that ``text`` names, as logs and lists do: ``17``, ``task:17``.
    Raises ArgumentTypeError."""
    digits = text.removeprefix("task:")
    if not (digits.isascii() and digits.isdecimal()):
        raise ArgumentTypeError(f"{plain(text)!r} is no task: use 17 or task:17.")
    return int(digits)


@contextmanager
def refusing() -> Iterator[None]:
    """A block in which a refusal of a verb ends the command with its sentence: with code 2 if a
    queue or a handler is named that is not known."""
    try:
        yield
    except (UnknownQueue, UnknownTask) as error:
        raise CommandError(str(error), returncode=ExitCode.REFUSED) from error
    except (TaskError, ValueError) as error:
        raise CommandError(str(error)) from error


def find(key: int) -> Task:
    task: Task | None = Task.objects.home().filter(pk=key).first()
    if task is None:
        raise CommandError(f"There is no task:{key}. It never existed, or was pruned or discarded.")
    return task


def chosen_by(options: Mapping[str, Any]) -> TaskQuerySet:
    """Return the tasks that the options select. Raises CommandError if a queue or a handler is
    named that is neither known nor that of any task: it may have been removed since."""
    every = tasks = Task.objects.home()
    if options.get("ids"):
        tasks = tasks.filter(pk__in=options["ids"])
    for state in {options["state"], "stuck" if options["stuck"] else None} - {None}:
        tasks = tasks.lapsed() if state == "stuck" else getattr(tasks, state)()
    with refusing():
        if (queue := options["queue"]) is not None:
            if queue not in task_settings.QUEUES and not every.filter(queue=queue).exists():
                check_queue(queue)
            tasks = tasks.filter(queue=queue)
        if (name := options["name"]) is not None:
            if registry.get(name) is None and not every.filter(name=name).exists():
                registry.find(name)
            tasks = tasks.filter(name__in=registry.all_names(name))
    return tasks


def refuse_unasked(action: str, tasks: TaskQuerySet, options: Mapping[str, Any]) -> None:
    """Raise CommandError unless the operator has selected tasks and has confirmed it with --yes.

    Args:
        action: The verb of the subcommand.
        tasks: The selected tasks.
        options: The options of the subcommand.
    """
    if not any(options[name] for name in FILTERS):
        raise CommandError(
            "No tasks selected. Give IDs, or one of --state, --queue, --name, --stuck."
        )
    count = tasks.count()
    if not count:
        raise CommandError("No task matches.")
    if not options["yes"]:
        match = f"{plural(count, 'task')} {'matches' if count == 1 else 'match'}"
        raise CommandError(f"{match}. Add --yes to {action} those that can be {DONE[action]}.")


def details_of(action: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cleaned form of an action, except the reason."""
    if action != "reschedule":
        return {}
    queue, start, priority = options["to_queue"], start_of(options), options["priority"]
    if queue is None and start is None and priority is None:
        raise CommandError("Give a queue (--to-queue), a time (--at or --in), or a --priority.")
    if queue is not None:
        check_queue(queue)
    if priority is not None:
        check_between(priority, *PRIORITIES, "priority")
    return {"queue": queue, "scheduled_at": start, "at_once": False, "priority": priority}


def start_of(options: Mapping[str, Any]) -> datetime | None:
    if options["delay"] is not None:
        try:
            return now() + timedelta(seconds=options["delay"])
        except (OverflowError, ValueError) as error:  # such as inf and nan
            raise CommandError(f"--in is out of bounds: {options['delay']} s.") from error
    return None if options["at"] is None else _moment(options["at"])


def data_of(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"--data is not valid JSON: {error}.") from error
    if not isinstance(data, dict):
        raise CommandError('--data must be a JSON object, such as {"invoice_id": 7}.')
    return data


def _moment(text: str) -> datetime:
    if text == "now":
        return now()
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(
            f"{plain(text)!r} is not a valid time. Use the form 2030-01-31T08:00:00+01:00."
        )
    return make_aware(moment) if is_naive(moment) else moment


def now() -> datetime:
    return database_now(leasing_settings.DATABASE)
