"""Bends each condition of the verbs in turn, and prints which test notices: ``make mutants``.

    python -m tests.mutants [--minutes 3] [--seed 7] [--only NAME] [--keep] [--list]

A mutant is tried on SQLite, in the portable form, and when nobody notices it there on PostgreSQL,
in the form of one statement; what only PostgreSQL runs, there alone. The two databases work side by
side, in a full round two servers of each. With ``--minutes`` as many are tried as fit, in an order
drawn by ``--seed``; ``--list`` makes all and tries none. Exits with 1 when one survives that
``explained`` does not name. ``--keep`` writes what noticed which into the table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from tests.mutants.explained import EXPLAINED
from tests.mutants.killers import Killers
from tests.mutants.making import ROOT, Mutant
from tests.mutants.server import SOCKET
from tests.mutants.shelf import ON_POSTGRESQL, PATHS, all_mutants, nearest_of
from tests.processes import BOUND

#: Where the tests are that look at the verbs.
TESTS = ("tests/leasing", "tests/tasks")
SURVIVED = "survived"
#: With fewer mutants than this, the nearest tests are faster than finding out who reaches what.
REACH_PAYS_FROM = 40


class Database:
    """A server of one database: see ``server``."""

    def __init__(self, name: str) -> None:
        ours, theirs = socket.socketpair()
        command = [*BOUND, sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.server"]
        # What SQLite was asked already, and is the same on PostgreSQL, is not asked again.
        once = "also" if name == "sqlite" else "not"
        options = ["-p", "no:xdist", "-p", "no:cacheprovider", "--db", name, "--once", once, *TESTS]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                env={**os.environ, SOCKET: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
            )
        self.name = name
        self._socket, self._answers = ours, ours.makefile("r")

    def wait_until_ready(self) -> None:
        self._answer()

    def measure_reach(self) -> None:
        """Learn which test runs which function: minutes, that a full round saves."""
        self._ask({"reach": sorted({place for path in PATHS for place in nearest_of(path)})})

    def try_on(self, mutant: Mutant, likely: Sequence[str]) -> str | None:
        """Return which test notices ``mutant``; None if none."""
        nearest = nearest_of(mutant.path)
        answer = self._ask({"mutant": mutant.name, "likely": [*likely], "nearest": [*nearest]})
        killer: str | None = answer["killer"]
        return killer

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.wait()

    def _ask(self, question: dict[str, Any]) -> Any:
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"the tests on {self.name} ended; what they printed is above")
        return json.loads(line)


class Round:
    """Deals the mutants out to both databases, and keeps what came of each."""

    def __init__(
        self, mutants: Sequence[Mutant], killers: Killers, ends_at: float, *, keep: bool
    ) -> None:
        self.outcomes: dict[Mutant, str] = {}
        self._killers = killers
        self._keep = keep
        self._ends_at = ends_at
        self._knows_reach = ends_at == float("inf") and len(mutants) > REACH_PAYS_FROM
        self._lock = Lock()
        self._on_postgresql = deque(m for m in mutants if m.path.startswith(ON_POSTGRESQL))
        self._portable = deque(m for m in mutants if not m.path.startswith(ON_POSTGRESQL))
        self._at_work = 0

    def work(self, database: Database) -> None:
        """Try one after the other, until all are tried or the time is over."""
        if self._knows_reach:
            database.measure_reach()
        take = self._next_portable if database.name == "sqlite" else self._next_for_postgresql
        while time.monotonic() < self._ends_at:
            with self._lock:
                mutant = take()
                likely = self._killers.likely(mutant) if mutant else []
                busy = self._at_work
            if mutant is None:
                if not busy:
                    return
                time.sleep(0.1)  # what SQLite lets pass comes here
                continue
            killer = database.try_on(mutant, likely)
            with self._lock:
                self._note(mutant, database, killer)

    def _next_portable(self) -> Mutant | None:
        if not self._portable:
            return None
        self._at_work += 1
        return self._portable.popleft()

    def _next_for_postgresql(self) -> Mutant | None:
        return self._on_postgresql.popleft() if self._on_postgresql else None

    def _note(self, mutant: Mutant, database: Database, killer: str | None) -> None:
        if database.name == "sqlite":
            self._at_work -= 1
            if killer is None:
                self._on_postgresql.append(mutant)
                return
        self.outcomes[mutant] = f"{killer} ({database.name})" if killer else SURVIVED
        if killer:
            self._killers.add(mutant, killer)
            if self._keep:
                self._killers.keep(all_mutants())
        print(f"{mutant.path}:{mutant.line} {mutant.name}\n    {self.outcomes[mutant]}", flush=True)


def main(args: Sequence[str]) -> int:
    """Try them, print the table, and sum up."""
    asked = _parser().parse_args(args)
    killers = Killers().learn(all_mutants())
    mutants = [m for m in all_mutants() if asked.only in m.name and m.name not in EXPLAINED]
    unknown = EXPLAINED.keys() - {mutant.name for mutant in all_mutants()}
    for name in sorted(unknown):
        print(f"explained, but not made any more: {name}")
    if asked.list:
        print(f"mutants: {len(mutants)} can be made, {len(unknown)} explained in vain")
        return bool(unknown)
    random.Random(asked.seed).shuffle(mutants)
    if not asked.minutes:  # what nothing is known of takes longest
        mutants.sort(key=killers.knows)

    began = time.monotonic()
    # A second pair takes longer to start than it saves of a short round.
    names = ["sqlite", "postgresql"] * (1 if asked.minutes or asked.only else 2)
    databases = [Database(name) for name in names]
    for database in databases:
        database.wait_until_ready()
    ends_at = began + asked.minutes * 60 if asked.minutes else float("inf")
    trial = Round(mutants, killers, ends_at, keep=asked.keep)
    threads = [Thread(target=trial.work, args=[database]) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for database in databases:
        database.close()

    counts = Counter("survived" if o == SURVIVED else "killed" for o in trial.outcomes.values())
    for mutant, outcome in trial.outcomes.items():
        if outcome == SURVIVED:
            print(f"survived: {mutant.path}:{mutant.line} {mutant.name}")
    print(
        f"mutants: {counts['killed']} killed, {counts['survived']} survived,"
        f" {len(mutants) - len(trial.outcomes)} not tried, {len(EXPLAINED)} explained,"
        f" seed {asked.seed}, in {time.monotonic() - began:.0f} s"
    )
    return bool(counts["survived"] or unknown)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--minutes", type=float, help="try as many as fit")
    parser.add_argument("--seed", type=int, default=int(time.time() // 86_400))
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--list", action="store_true", help="make them, and try none")
    parser.add_argument("--keep", action="store_true", help="write the table of killers")
    return parser


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
