from __future__ import annotations

import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from leasing.names import default_holder
from leasing.shutdown import on_stop_signal
from tasks import recovery, schedules
from tasks.presence import PRESENCE_PATIENCE, keep_present, sign_off


class Command(BaseCommand):
    help = "Recover tasks whose holder is gone. Every worker does so too; this is one alone."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="sweep once, say how many, and end")

    def handle(self, **options: Any) -> None:
        if options["once"]:
            self.stdout.write(f"{recovery.sweep()} recovered")
            return
        stopping = threading.Event()
        on_stop_signal(stopping.set)
        name = default_holder()
        nothing: dict[str, Any] = {"queues": [], "handlers": [], "concurrency": 0}
        presence = threading.Thread(
            target=keep_present, args=(name, stopping), kwargs=nothing, daemon=True
        )
        presence.start()
        scheduler = threading.Thread(target=schedules.run_until, args=(stopping,), daemon=True)
        scheduler.start()
        recovery.run_until(stopping)
        presence.join(PRESENCE_PATIENCE)
        sign_off(name)
