from __future__ import annotations

import json
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from leasing.management.base import ServiceCommand
from leasing.metrics import port
from leasing.runtime.shutdown import on_stop_signal
from leasing.validation.names import unique_name
from tasks.maintenance import recovery, services
from tasks.management.greeting import STOP
from tasks.models import WorkerRole
from tasks.worker.registration import registered


class Command(ServiceCommand):
    help = (
        "Recover tasks whose holder is gone, repair or report any other invalid state, and serve "
        "schedules, pruning and samples. Every worker does this as well; this process does nothing "
        "else."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="Check once, print a report and exit"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="With --once: only report, change nothing"
        )
        parser.add_argument("--json", action="store_true", help="With --once: print a JSON object")
        port.add_arguments(parser)

    def handle(self, **options: Any) -> None:
        if options["once"]:
            self._print(recovery.examine(dry_run=options["dry_run"]), options["json"])
            return
        if options["dry_run"] or options["json"]:
            raise CommandError("--dry-run and --json need --once.")
        port.serve(options)
        stopping, name = threading.Event(), unique_name()
        self.greet(options, f"recovery {name}", {"stop": STOP})
        present = registered(name, stopping, WorkerRole.RECOVERY, sweeps=True)
        with on_stop_signal(stopping.set), present as threads:
            services.start(threads)
            stopping.wait()

    def _print(self, report: recovery.Report, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(report.as_json(), indent=2))
            return
        for each in report.findings:
            shown = ", ".join(f"{each.model}:{key}" for key in each.keys)
            shown += ", ..." if each.count > len(each.keys) else ""
            self.stdout.write(f"{each.kind}: {each.count} ({shown})")
            self.stdout.write(f"  {each.what}")
            if not each.remedy:
                self.stdout.write("  reported only")
            elif report.dry_run:
                self.stdout.write(f"  to be repaired: {each.remedy}")
            else:
                self.stdout.write(f"  {each.repaired} repaired: {each.remedy}")
        if not report.findings:
            self.stdout.write("Nothing to repair, nothing to report.")
            return
        if report.dry_run:
            repairs = f"{report.repairable} to be repaired"
        else:
            repairs = f"{report.repaired} repaired"
        self.stdout.write(f"{repairs}, {report.suspected} reported only")
