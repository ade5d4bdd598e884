from __future__ import annotations

import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.management.base import ServiceCommand, duration
from leasing.metrics import port
from leasing.runtime.shutdown import on_stop_signal
from leasing.validation.names import check_name, check_ttl, unique_name
from tasks.exceptions import UnknownQueue
from tasks.generator import Generator, start_unless_asked
from tasks.management.greeting import STOP
from tasks.models import WorkerRole
from tasks.registry import check_queue
from tasks.sample import LONGEST, SHORTEST
from tasks.worker.registration import registered


class Command(ServiceCommand):
    help = (
        "Generate sample tasks while the desired state is running (POST /api/generator/start, or "
        "the generator's page). Of several processes one generates, the others are on standby."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rate", type=float, default=1.0, help="Tasks per second (default 1)")
        for bound, default in (("shortest", SHORTEST), ("longest", LONGEST)):
            parser.add_argument(
                f"--{bound}",
                type=duration,
                default=default,
                metavar="DURATION",
                help=f"Time that the {bound} tasks run (default {default:g})",
            )
        parser.add_argument("--queue", help="Queue of the tasks (default: the handler's)")
        parser.add_argument(
            "--ttl", type=duration, metavar="DURATION", help="Time that its lease is valid"
        )
        parser.add_argument("--name", help="Name of this instance")
        port.add_arguments(parser)
        parser.add_argument(
            "--start",
            action="store_true",
            help="Start generating unless start or stop was ever requested",
        )

    def handle(self, **options: Any) -> None:
        if not 0 < options["rate"] <= 10_000:
            raise CommandError("--rate must be more than 0 and at most 10000.")
        if not 0 <= options["shortest"] <= options["longest"] <= LONGEST:
            raise CommandError(f"Durations must be from 0 to {LONGEST} seconds.")
        try:
            check_ttl(options["ttl"])
            if options["name"] is not None:
                check_name(options["name"], "name")
            if options["queue"]:
                check_queue(options["queue"])
        except (InvalidResource, InvalidTTL, UnknownQueue) as error:
            raise CommandError(str(error)) from error
        port.serve(options)
        if options["start"]:
            start_unless_asked()
        name = unique_name(options["name"])
        lengths = f"{options['shortest']:.12g} to {options['longest']:.12g} s each"
        self.greet(
            options,
            f"generator {name}",
            {"tasks": f"{options['rate']:.12g} per second, {lengths}", "stop": STOP},
        )
        stopping = threading.Event()
        present = registered(name, stopping, WorkerRole.GENERATOR)
        with on_stop_signal(stopping.set), present:
            Generator(
                rate=options["rate"],
                shortest=options["shortest"],
                longest=options["longest"],
                queue=options["queue"],
                ttl=options["ttl"],
                name=name,
            ).run(stopping)
