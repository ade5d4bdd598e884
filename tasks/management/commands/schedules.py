from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError

from leasing.dashboard.operator_actions import ActionOutcome
from leasing.functions import database_now
from leasing.humanize import ago, until
from leasing.management.subcommands import (
    AddAction,
    SubcommandsCommand,
    add_json,
    add_operator,
    attributes,
)
from leasing.runtime.terminal import plain
from tasks.dashboard.schedule_actions import SCHEDULE_ACTIONS
from tasks.dashboard.schedule_status import ScheduleStatus, status_of
from tasks.management.acting import perform, report, why_paused
from tasks.models import Schedule


class Command(SubcommandsCommand):
    help = "List schedules, pause, resume or run them."

    def add_actions(self, add: AddAction) -> None:
        add_json(
            add("list", "List schedules by name: when each is due, and its last slot"), "array"
        )
        for name, says in (
            ("pause", "Pause schedules: nothing is enqueued until they are resumed"),
            ("resume", "Resume schedules at their next due times"),
            ("run", "Enqueue the tasks of schedules once, now"),
        ):
            verb = add(name, says)
            verb.add_argument("names", nargs="+", metavar="NAME", help="Name of a schedule")
            add_operator(verb)

    def _list(self, options: dict[str, Any]) -> None:
        rows = Schedule.objects.home()
        now = database_now(rows.db)
        found = [(each, status_of(each, now)) for each in rows.with_last().order_by("name")]
        head = ("SCHEDULE", "STATE", "RULE", "NEXT", "LAST", "TASK", "WHY")
        table = [head, *(_columns(each, status, now) for each, status in found)]
        self.print_list(
            options, [_facts(each, status) for each, status in found], table, "No schedules."
        )

    def _stop_or_go_on(self, options: dict[str, Any]) -> None:
        name = options["action"]
        _, outcome = self._act(name, options)
        self.print_result(options, *report(outcome, "schedule", f"{name}d"))

    _pause = _resume = _stop_or_go_on

    def _run(self, options: dict[str, Any]) -> None:
        rows, outcome = self._act("run_now", options)
        enqueued = rows.filter(pk__in=outcome.applicable if outcome.changed else ())
        latest = enqueued.with_last().filter(last_task__isnull=False).order_by("name")
        tasks = dict(latest.values_list("name", "last_task"))
        facts, text = report(outcome, "task", "enqueued")
        lines = [text, *(f"{plain(name)}: task:{pk}" for name, pk in tasks.items())]
        self.print_result(options, facts | {"tasks": tasks}, "\n".join(lines))

    def _act(self, name: str, options: dict[str, Any]) -> tuple[Any, ActionOutcome]:
        """Do the action ``name`` to the named schedules. Returns them, and its outcome."""
        rows: Any = Schedule.objects.home().filter(name__in=options["names"])
        keys = dict(rows.values_list("name", "pk"))
        if unknown := [name for name in options["names"] if name not in keys]:
            raise CommandError(f"There is no schedule {plain(', '.join(unknown))}.")
        return rows, perform(SCHEDULE_ACTIONS[name], rows, keys.values(), options)


def _columns(schedule: Any, status: ScheduleStatus, now: datetime) -> tuple[str, ...]:
    due = until(status.upcoming[0], now, past="due") if status.upcoming else ""
    last = ago(schedule.last_at, now) if schedule.last_at else ""
    if schedule.last_skipped:
        last += " (skipped)"
    elif schedule.last_task:
        last += f" (task:{schedule.last_task})"
    why = why_paused(schedule)
    if status.skipped:
        why += f"; {status.skipped} skipped" if why else f"{status.skipped} skipped"
    return schedule.name, status.badge.word, status.rule, due, last, schedule.task_name, why


def _facts(schedule: Any, status: ScheduleStatus) -> dict[str, Any]:
    columns = ("name", "task_name", "queue", "priority", "declared")
    pause = ("paused_at", "paused_by", "reason")
    last = ("last_at", "last_task", "last_skipped", "last_by")
    return attributes(schedule, *columns, *pause, *last) | {
        "rule": status.rule,
        "state": status.badge.word,
        "why": status.why,
        "skipped": status.skipped.value,
        "next_at": status.upcoming[0] if status.upcoming else None,
    }
