from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.names import check_name, check_ttl
from leasing.shutdown import on_stop_signal
from tasks.chaos import Chaos
from tasks.exceptions import UnknownQueue
from tasks.querysets import check_queue
from tasks.worker import WorkerProcess


class Command(BaseCommand):
    help = "Run tasks until SIGTERM or SIGINT. Start as many as you like, anywhere."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="serve this queue only; may be given again (default: all of them)",
        )
        parser.add_argument("--threads", type=int, default=4, help="tasks at a time (default 4)")
        parser.add_argument(
            "--ttl", type=float, help="seconds that a claim and each heartbeat are good for"
        )
        parser.add_argument(
            "--stop-timeout",
            type=float,
            metavar="SECONDS",
            help="how long running tasks may go on after a stop",
        )
        parser.add_argument("--name", help="what this worker is called (default: host:pid:random)")
        parser.add_argument(
            "--chaos",
            action="store_true",
            help="for demonstrations: 5 %% of tasks crash the process, 10 %% stall",
        )

    def handle(self, **options: Any) -> None:
        if options["threads"] < 1:
            raise CommandError("--threads must be at least 1.")
        try:
            check_ttl(options["ttl"])
            if options["name"] is not None:
                check_name(options["name"], "name")
            for queue in options["queues"] or ():
                check_queue(queue)
        except (InvalidResource, InvalidTTL, UnknownQueue) as error:
            raise CommandError(str(error)) from error
        worker = WorkerProcess(
            queues=options["queues"],
            concurrency=options["threads"],
            ttl=options["ttl"],
            stop_timeout=options["stop_timeout"],
            chaos=Chaos() if options["chaos"] else None,
            name=options["name"],
        )
        on_stop_signal(worker.stop)
        worker.run()
        if worker.failed:
            raise CommandError("Every thread was stuck.")
