from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandError

from leasing.humanize import ago
from leasing.management.subcommands import AddAction, SubcommandsCommand, add_json, attributes
from leasing.runtime.shutdown import ExitCode
from leasing.runtime.terminal import plain
from tasks.dashboard.worker_rows import WorkerRow, with_tasks
from tasks.diagnosis.slots import Slots
from tasks.models import Worker, WorkerState


class Command(SubcommandsCommand):
    help = "List workers and other processes that send heartbeats, or check one."

    def add_actions(self, add: AddAction) -> None:
        listing = add("list", "List workers that have not stopped, the newest first")
        listing.add_argument(
            "--state", choices=WorkerState.values, help="Only workers in this state"
        )
        add_json(listing, "array")
        check = add("check", "Exit with code 0 if a worker is live, with 1 if it is not")
        check.add_argument(
            "name", metavar="NAME", help="Name or label (--name) of a worker, or label of a parent"
        )
        add_json(check)

    def _list(self, options: dict[str, Any]) -> None:
        rows: Any = Worker.objects.home().with_state().order_by("-pk")
        wanted = [options["state"]] if options["state"] else set(WorkerState.values) - {"stopped"}
        workers = with_tasks(rows.filter(state__in=wanted))
        head = ("WORKER", "STATE", "ROLE", "QUEUES", "SLOTS", "TASKS", "SEEN", "HOST", "PID")
        table = [head, *(_columns(each) for each in workers)]
        none = f"No worker is {options['state']}." if options["state"] else "No workers."
        self.print_list(options, [_facts(each) for each in workers], table, none)

    def _check(self, options: dict[str, Any]) -> None:
        rows: Any = Worker.objects.home().called(options["name"]).with_state()
        workers = with_tasks(rows.order_by("fleet_index", "pk"))
        if not workers:
            raise CommandError(f"There is no worker {plain(options['name'])}.")
        if workers[0].worker.fleet == options["name"]:
            each = ", ".join(f"worker {row.worker.fleet_index} is {row.state}" for row in workers)
            text = f"Of {plain(options['name'])} {each}."
            self.print_result(options, [_facts(row) for row in workers], text)
        else:
            (row,) = workers
            text = f"{plain(row.worker.name)} is {row.state}, seen {_seen(row)}."
            self.print_result(options, _facts(row), text)
        if not all(row.is_live for row in workers):
            sys.exit(ExitCode.FAILED)


def _seen(row: WorkerRow) -> str:
    return ago(row.worker.last_seen_at, row.worker.now)  # type: ignore[attr-defined]


def _columns(row: WorkerRow) -> tuple[str, ...]:
    worker = row.worker
    tasks, host = str(len(row.tasks)), worker.hostname
    queues, slots = ", ".join(worker.queues), ", ".join(map(_busy, row.slots))
    seen, pid = _seen(row), str(worker.pid)
    return worker.name, row.state, worker.role, queues, slots, tasks, seen, host, pid


def _busy(slots: Slots) -> str:
    blocked = f"; {slots.blocked:,} blocked" if slots.blocked else ""
    return f"{slots.busy:,} of {slots.words}{blocked}"


def _facts(row: WorkerRow) -> dict[str, Any]:
    columns = ("name", "role", "hostname", "pid", "queues", "started_at", "last_seen_at")
    fleet = ("fleet", "fleet_index", "fleet_restarts", "death")
    facts = attributes(row.worker, *columns, "stopped_at", *fleet)
    slots = {
        each.kind: {"total": each.total, "busy": each.busy, "blocked": each.blocked}
        for each in row.slots
    }
    tasks = [task.pk for task in row.tasks]
    return facts | {"state": row.state, "slots": slots, "tasks": tasks}
