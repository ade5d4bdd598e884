from __future__ import annotations

from typing import Any

from leasing.functions import database_now
from leasing.humanize import ago
from leasing.management.subcommands import (
    AddAction,
    SubcommandsCommand,
    add_json,
    add_operator,
    attributes,
)
from leasing.runtime.terminal import plain
from tasks.dashboard.queue_actions import QUEUE_ACTIONS
from tasks.dashboard.queue_rows import QueueLine, read_queues
from tasks.management.acting import perform, report, why_paused
from tasks.management.choosing import refusing
from tasks.models import Queue


class Command(SubcommandsCommand):
    help = "List queues, pause or resume them."

    def add_actions(self, add: AddAction) -> None:
        add_json(add("list", "List queues, what waits in them and who serves them"), "array")
        pause = add("pause", "Pause queues: none of their tasks is claimed, running ones continue")
        resume = add("resume", "Resume queues")
        for verb in (pause, resume):
            verb.add_argument("names", nargs="+", metavar="NAME", help="Name of a queue")
        add_operator(pause, required=True, help="Reason, shown with every task that waits there")
        add_operator(resume)

    def _list(self, options: dict[str, Any]) -> None:
        lines = read_queues().lines
        now = database_now(Queue.objects.home().db)
        head = ("QUEUE", "STATE", "READY", "SCHEDULED", "RUNNING", "OLDEST DUE", "WORKERS", "WHY")
        table = [head]
        for line in lines:
            due = ago(line.due_since, now) if line.due_since else ""
            counts = str(line.ready), str(line.scheduled), str(line.running), due, str(line.workers)
            why = why_paused(line.queue) if line.queue else ""
            why += " ".join(plain(reason.sentence) for reason in line.reasons)
            table.append((line.name, line.badge.word, *counts, why))
        self.print_list(options, [_facts(line) for line in lines], table, "No queues.")

    def _act(self, options: dict[str, Any]) -> None:
        name = options["action"]
        with refusing():
            rows = Queue.objects.home().known(*options["names"])
        outcome = perform(QUEUE_ACTIONS[name], rows, options["names"], options)
        self.print_result(options, *report(outcome, "queue", f"{name}d"))

    _pause = _resume = _act


def _facts(line: QueueLine) -> dict[str, Any]:
    paused = (line.is_paused and line.queue) or Queue()
    return {
        "name": line.name,
        "state": line.badge.word,
        "ready": line.ready.value,
        "scheduled": line.scheduled.value,
        **attributes(line, "running", "due_since", "workers"),
        **attributes(paused, "paused_at", "paused_by", "reason"),
        "waiting": [reason.sentence for reason in line.reasons],
    }
