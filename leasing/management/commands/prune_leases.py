from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from leasing import pruning
from leasing.management.base import TablesCommand
from leasing.runtime.terminal import as_json


class Command(TablesCommand):
    help = (
        "Delete named leases, lease events and results kept by once that ended more than DAYS "
        "ago, and audit entries older than LEASING['AUDIT_RETENTION']. Fencing tokens keep rising "
        "when a deleted name is used again. Safe to run several at once, at any time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--days", type=int, default=30, help="Minimum age in days, at least 1 (default 30)"
        )
        parser.add_argument(
            "--batch", type=int, default=500, help="Rows per transaction (default 500)"
        )
        parser.add_argument("--json", action="store_true", help="Print a JSON object")

    def handle(self, **options: Any) -> None:
        # Below a day, a difference between the clocks of a database and its successor may matter.
        if not 1 <= options["days"] <= 36_500:
            raise CommandError("--days must be from 1 to 36500.")
        if not 1 <= options["batch"] <= 10_000:
            raise CommandError("--batch must be from 1 to 10000.")
        done = pruning.prune(timedelta(days=options["days"]), options["batch"])
        entries = pruning.prune_audit(options["batch"])
        if options["json"]:
            self.stdout.write(as_json({**asdict(done), "audit_entries": entries}))
            return
        self.stdout.write(
            f"Pruned {done.leases} leases, {done.events} events, {done.once_keys} results kept by "
            f"once, {entries} audit entries."
        )
