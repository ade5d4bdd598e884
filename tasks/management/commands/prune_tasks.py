from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from leasing.management.base import TablesCommand, duration
from leasing.runtime.terminal import as_json
from tasks.conf import KEYED, retention
from tasks.maintenance import housekeeping
from tasks.models import TaskStatus


class Command(TablesCommand):
    help = (
        "Delete ended tasks older than TASK_QUEUE['RETENTION'] allows for their state. Workers do "
        "this every PRUNE_EVERY seconds as well. Safe to run several at once, at any time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--state",
            action="append",
            choices=TaskStatus.ended(),
            help="Only these states (default: all)",
        )
        parser.add_argument(
            "--days",
            type=float,
            help="Minimum age in days, instead of the settings (of tasks without idempotency key)",
        )
        parser.add_argument(
            "--batch", type=int, default=500, help="Rows per transaction (default 500)"
        )
        parser.add_argument(
            "--pause",
            type=duration,
            default=housekeeping.PRUNE_PAUSE,
            metavar="DURATION",
            help=f"Time between two batches (default {housekeeping.PRUNE_PAUSE})",
        )
        parser.add_argument("--json", action="store_true", help="Print a JSON object")

    def handle(self, **options: Any) -> None:
        if not 1 <= options["batch"] <= 10_000:
            raise CommandError("--batch must be from 1 to 10000.")
        if not 0 <= options["pause"] <= 60:
            raise CommandError("--pause must be from 0 to 60.")
        keep = {state: age for state, age in retention().items() if state != KEYED}
        if options["days"] is not None:
            if not 0 <= options["days"] <= 36_500:
                raise CommandError("--days must be from 0 to 36500.")
            keep = dict.fromkeys(keep, timedelta(days=options["days"]))
        if options["state"]:
            keep = {state: keep[state] for state in keep if state in options["state"]}
        done = housekeeping.prune(keep, batch=options["batch"], pause=options["pause"])
        if options["json"]:
            self.stdout.write(as_json(done))
            return
        said = ", ".join(f"{count} {state}" for state, count in done.items())
        self.stdout.write(f"Pruned {said or 'nothing: RETENTION keeps every state'}.")
