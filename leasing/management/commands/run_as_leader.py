from __future__ import annotations

import shutil
import sys
import threading
from argparse import PARSER, ArgumentParser
from contextlib import closing
from signal import SIGTERM
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leasing.exceptions import LeaseError
from leasing.leader import Leader
from leasing.metrics import port
from leasing.process.deadman import KILLED_BY
from leasing.process.supervisor import Run, run_under
from leasing.runtime.event_lines import log
from leasing.runtime.shutdown import on_stop_signal

#: EX_TEMPFAIL: try again later.
TERM_ENDED = 75


class Command(BaseCommand):
    help = (
        "Run COMMAND while this process leads NAME, and campaign until then. COMMAND finds "
        "LEASE_RESOURCE and LEASE_FENCING_TOKEN in its environment. It gets SIGTERM when the "
        "leadership is lost or about to be, and SIGKILL, with all of its process group, before "
        "another can lead; when the leadership was revoked, a second later. SIGTERM and SIGINT "
        "end it too: COMMAND gets SIGTERM, and then the leadership is given back. When COMMAND "
        "ends by itself, this ends with its exit code. "
        "When this process is killed or paused, a process beside COMMAND kills it in time. Were "
        "both killed, COMMAND dies on Linux, and would go on elsewhere."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="what to lead: the lease's resource")
        parser.add_argument(
            "--ttl", type=float, help="seconds after a leader's death until the next is elected"
        )
        parser.add_argument("--holder", help="what this instance is called")
        parser.add_argument(
            "--stop-timeout",
            type=float,
            default=10.0,
            metavar="SECONDS",
            help="how long COMMAND may go on after a stop (default 10)",
        )
        port.add_arguments(parser)
        again = parser.add_mutually_exclusive_group()
        again.add_argument(
            "--once",
            action="store_true",
            help=f"lead one term at most: end with exit code {TERM_ENDED} when it is lost",
        )
        again.add_argument(
            "--restart",
            action="store_true",
            help="campaign again when COMMAND has ended by itself",
        )
        parser.add_argument(
            "command", nargs=PARSER, metavar="-- COMMAND", help="what to run, with its arguments"
        )

    def handle(self, **options: Any) -> None:
        command: list[str] = options["command"]
        if command[0] == "--" and command[1:]:
            command = command[1:]
        if shutil.which(command[0]) is None:
            raise CommandError(f"There is no command {command[0]}.")
        if not 0 <= options["stop_timeout"] <= 86_400:
            raise CommandError("--stop-timeout must be from 0 to 86400.")
        try:
            leader = Leader(options["name"], ttl=options["ttl"], holder=options["holder"])
        except LeaseError as error:
            raise CommandError(str(error)) from error
        port.serve(options)
        stopping = threading.Event()
        with on_stop_signal(stopping.set), closing(leader.terms(stopping)) as terms:
            for term in terms:
                run = run_under(term, command, stopping, options["stop_timeout"])
                log.leader_command_ended(
                    command=command[0],
                    resource=term.resource,
                    holder=term.holder,
                    exit_code=run.code,
                )
                if stopping.is_set() or not (run.term_ended or options["restart"]):
                    sys.exit(exit_code(run))
                if options["once"]:
                    sys.exit(TERM_ENDED)
                if not run.term_ended:
                    leader.resign()  # another may have better luck with it


def exit_code(run: Run) -> int:
    """What this process ends with when ``run`` was its last: 0 for a command that was asked to
    end and left it to the signal, else the command's own."""
    return 0 if run.asked and run.code == KILLED_BY + SIGTERM else run.code
