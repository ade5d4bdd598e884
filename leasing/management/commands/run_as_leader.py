from __future__ import annotations

import shutil
import sys
import threading
from argparse import PARSER, ArgumentParser
from contextlib import closing
from signal import SIGTERM
from typing import Any

from django.core.management.base import CommandError

from leasing.exceptions import LeaseError
from leasing.leader import Leader
from leasing.management.base import ServiceCommand, duration
from leasing.metrics import port
from leasing.process.supervisor import Oversight, Run, notice_of, run_under
from leasing.runtime.event_lines import log
from leasing.runtime.shutdown import KILLED_BY, ExitCode, on_stop_signal
from leasing.stores import DEFAULT_STORE, InvalidStore, store_of


class Command(ServiceCommand):
    help = (
        "Wait for the leadership of NAME, then run COMMAND for as long as this process leads. "
        "COMMAND finds LEASE_RESOURCE and LEASE_FENCING_TOKEN in its environment. When the "
        "leadership is lost or about to expire, COMMAND gets SIGTERM, and its process group gets "
        "SIGKILL before another process can lead (one second after a revocation). On SIGTERM or "
        "SIGINT to this process, COMMAND gets SIGTERM and the leadership is released afterwards. "
        "When COMMAND exits by itself, this process exits with the same code. If this process is "
        "killed or paused, a second process kills COMMAND in time; if both are killed, COMMAND "
        "dies too on Linux, but keeps running on other systems."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="Resource of the lease to lead under")
        parser.add_argument(
            "--ttl",
            type=duration,
            metavar="DURATION",
            help="Time from the death of a leader to the next election",
        )
        parser.add_argument("--holder", help="Name of this instance")
        parser.add_argument(
            "--store",
            default=DEFAULT_STORE,
            metavar="ALIAS",
            help="Store of the lease, of the setting STORES (default: %(default)s)",
        )
        parser.add_argument(
            "--stop-timeout",
            type=duration,
            default=10.0,
            metavar="DURATION",
            help="Time for COMMAND to stop after SIGTERM (default 10)",
        )
        port.add_arguments(parser)
        again = parser.add_mutually_exclusive_group()
        again.add_argument(
            "--once",
            action="store_true",
            help=f"Lead one term at most; exit with code {ExitCode.TERM_ENDED} when it is lost",
        )
        again.add_argument(
            "--restart",
            action="store_true",
            help="Campaign again when COMMAND exits by itself",
        )
        parser.add_argument(
            "command", nargs=PARSER, metavar="-- COMMAND", help="Command to run, with its arguments"
        )

    def handle(self, **options: Any) -> None:
        command: list[str] = options["command"]
        if command[0] == "--" and command[1:]:
            command = command[1:]
        if shutil.which(command[0]) is None:
            raise CommandError(f"Command not found: {command[0]}.")
        if not 0 <= options["stop_timeout"] <= 86_400:
            raise CommandError("--stop-timeout must be from 0 to 86400.")
        try:
            leader = Leader(
                options["name"],
                ttl=options["ttl"],
                holder=options["holder"],
                store=store_of(options["store"]),
            )
        except (LeaseError, InvalidStore) as error:
            raise CommandError(str(error)) from error
        port.serve(options)
        stopping = threading.Event()
        with on_stop_signal(stopping.set), closing(leader.terms(stopping)) as terms:
            for term in terms:
                run = run_under(
                    term, command, stopping, Oversight(notice_of(term), options["stop_timeout"])
                )
                log.leader_command_ended(
                    command=command[0],
                    resource=term.resource,
                    holder=term.holder,
                    exit_code=run.code,
                )
                if stopping.is_set() or not (run.term_ended or options["restart"]):
                    sys.exit(exit_code(run))
                if options["once"]:
                    sys.exit(ExitCode.TERM_ENDED)
                if not run.term_ended:
                    leader.resign()  # the command may succeed in another process


def exit_code(run: Run) -> int:
    """Return the exit code of this process after its last ``run``: 0 if the command was asked to
    end and SIGTERM ended it, else the exit code of the command."""
    return 0 if run.asked and run.code == KILLED_BY + SIGTERM else run.code
