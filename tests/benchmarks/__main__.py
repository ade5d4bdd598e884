"""``make bench``: ``python -m tests.benchmarks [options]``.

Starts a PostgreSQL of its own, has the workloads measured in turns, prints medians and ratios,
writes build/bench.json, and ends with 1 when a bar is missed. The last line is the summary.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import django

from tests.benchmarks import bars, peers
from tests.benchmarks.bench import LOG, Figures, measured
from tests.benchmarks.databases import ROOT, Databases, running
from tests.benchmarks.report import Report
from tests.benchmarks.sizes import SIZES
from tests.postgres import NoServer

#: In this order. Those that are True differ little between turns, or take long: measured once.
WORKLOADS = {
    "drain": False,
    "enqueue": False,
    "latency": False,
    "leases": False,
    "stores": True,
    "naps": False,
    "head_of_line": False,
    "priority": False,
    "idle": False,
    "looks": True,
    "unbegun": True,
    "fleet": True,
    "snapshot": True,
    "claim": True,
    "keeper": True,
    "recovery": True,
    "capacity": True,
    "pages": True,
    "api": False,
    "remote": False,
    "sqlite": True,
    "kills": True,
}
#: What peers do as well: they follow at once.
BESIDE_PEERS = ("drain", "enqueue", "latency")


class Run:
    """The turns of one run."""

    def __init__(self, databases: Databases, size: str, workloads: list[str], asked: list[str]):
        self.databases = databases
        self.size = size
        self.workloads = workloads
        self.peers = asked
        #: The workloads and peers that could not be measured.
        self.failed: list[str] = []
        #: Peers for which something is missing here.
        self.left_out: list[str] = []

    def turns(self, count: int) -> list[Figures]:
        """The figures of each; those that there are when it is interrupted."""
        for peer, program in peers.without_means(self.peers).items():
            self._leave_out(peer, f"there is no {program} on PATH")
        for peer in list(self.peers):
            try:
                peers.prepare(peer)
            except (subprocess.CalledProcessError, OSError) as error:
                self._leave_out(peer, f"it could not be installed: {_reason(error)}")
        found: list[Figures] = []
        try:
            for number in range(count):
                found.append({})
                self._turn(number, found[-1])
        except KeyboardInterrupt:
            self.failed.append("what came after the interruption")
        return found

    def _leave_out(self, peer: str, reason: str) -> None:
        print(f"{peer} is left out: {reason}", file=sys.stderr)
        self.peers.remove(peer)
        self.left_out.append(peer)

    def _turn(self, number: int, figures: Figures) -> None:
        due = [name for name in self.workloads if number == 0 or not WORKLOADS[name]]
        beside = [name for name in due if name in BESIDE_PEERS]
        for name in beside:
            self._add(figures, number, name, self._workload)
        for peer in self.peers:
            self._add(figures, number, peer, self._peer)
        for name in due:
            if name not in beside:
                self._add(figures, number, name, self._workload)

    def _add(
        self, figures: Figures, number: int, name: str, measure: Callable[[str, str], Figures]
    ) -> None:
        what, start = f"turn {number + 1}: {name}", time.monotonic()
        database = f"bench_{name.replace('-', '_')}"
        url = self.databases.fresh(database)
        self.databases.settle()
        try:
            found = measure(name, url)
        except (subprocess.CalledProcessError, ValueError) as error:
            print(f"{what}: {_reason(error)}; see {LOG}", file=sys.stderr)
            self.failed.append(what)
            return
        finally:
            self.databases.drop(database)
        for each, by_whom in found.items():
            figures.setdefault(each, {}).update(by_whom)
        print(f"{what}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    def _workload(self, name: str, url: str) -> Figures:
        turn = [sys.executable, "-m", "tests.benchmarks.turn", self.size, name]
        figures: Figures = measured(turn, url)
        return figures

    def _peer(self, name: str, url: str) -> Figures:
        return peers.measure(name, url, SIZES[self.size])


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with {error.returncode}"
    return str(error)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    made.add_argument("--size", choices=SIZES, default="default")
    made.add_argument("--only", nargs="*", choices=WORKLOADS, default=[], metavar="WORKLOAD")
    made.add_argument("--peers", nargs="*", choices=peers.PINS, default=[], metavar="PEER")
    made.add_argument("--turns", type=int)
    made.add_argument("--report-only", action="store_true", help="missed bars are no failure")
    made.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json")
    return made


def peers_of(options: argparse.Namespace, workloads: list[str]) -> list[str]:
    """Those that were asked for; otherwise those of the bars, where their work is measured and
    there is time to install them."""
    if options.peers or SIZES[options.size].turns == 1 or not {*workloads} & {*BESIDE_PEERS}:
        return list(options.peers)
    return list(peers.IN_BARS)


def main(args: list[str]) -> int:
    """Measure what is asked for."""
    options = parser().parse_args(args)
    size = SIZES[options.size]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server's folder is removed
    LOG.unlink(missing_ok=True)
    try:
        with running() as databases:
            workloads = options.only or list(WORKLOADS)
            run = Run(databases, options.size, workloads, peers_of(options, workloads))
            lower = 0.0 if sys.version_info >= bars.NEWEST else bars.OLDER
            report = Report(run.turns(options.turns or size.turns), size.slack, lower)
            version = databases.version()
    except NoServer as error:
        print(f"bench: no PostgreSQL: {error}")
        return 1
    machine = ", ".join(
        [
            version,
            f"Python {platform.python_version()}",
            f"Django {django.get_version()}",
            f"{os.cpu_count()} cores",
        ]
    )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"on": machine, "size": options.size, **report.as_json()}, indent=1)
    )
    print(f"{report.tables()}\n")
    verdicts = report.verdicts()
    missed = [each for each in verdicts if not each.ok]
    told = [f"bench: {len(verdicts) - len(missed)} of {len(verdicts)} bars reached"]
    if run.left_out:
        told.append(f"left out: {', '.join(run.left_out)}")
    if run.failed:
        told.append(f"not measured: {', '.join(run.failed)}")
    print("; ".join([*told, machine, str(options.json)]))
    return int(bool(run.failed or missed) and not options.report_only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
