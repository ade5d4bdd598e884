"""Bends each condition of the verbs in turn, and prints which test notices: ``make mutants``.

    python -m tests.mutants [--minutes 2] [--seed 7] [--only NAME] [--new] [--keep] [--list]

The test that noticed a mutant in an earlier round is tried alone: ``killers`` has it as a hint,
and a line that is wrong costs time only. Where there is none, or it notices nothing any more, tests
are tried on SQLite, in the portable form, and when none notices it there on PostgreSQL, in the form
of one statement; what only PostgreSQL runs, there alone. A round that has many to try finds out
first which tests run which function, and tries those alone; otherwise all that are not slow are
tried, those first whose paths are nearest. The two databases work side by side, in a full round two
servers of each.

With ``--minutes`` as many are tried as fit: those without a noted test first, and then the others
in an order drawn by ``--seed``. ``--new`` tries those without a noted test alone; ``--list`` makes
all and tries none. ``--keep`` writes what noticed which into the table. Exits with 1 when all tests
were tried on a mutant, none of them noticed it, and ``explained`` does not name it.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

from tests.mutants.explained import EXPLAINED
from tests.mutants.killers import Killer, Killers
from tests.mutants.making import ROOT, Mutant
from tests.mutants.server import SOCKET
from tests.mutants.targets import ON_POSTGRESQL, all_mutants, nearest_of
from tests.processes import BOUND

#: Where the tests are that look at the verbs.
TESTS = ("tests/leasing", "tests/tasks")
SURVIVED = "survived"
#: Seconds for the tests near one mutant, where the round has no end.
LONGEST = 1e6
#: With fewer unknown mutants than this, to try all tests in the order of their paths is faster than
#: to find out first which reach what.
REACH_PAYS_FROM = 10


class Database:
    """A server of one database: see ``server``."""

    def __init__(self, name: str) -> None:
        ours, theirs = socket.socketpair()
        command = [*BOUND, sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.server"]
        options = ["-p", "no:xdist", "-p", "no:cacheprovider", "--db", name, "-m", "not slow"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *options, *TESTS],
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
        self._ask({"reach": True})

    def try_on(
        self, mutant: Mutant, tests: Sequence[str], nearest: Sequence[str], seconds: float
    ) -> str | None:
        """Return the first of ``tests``, and then of those ``nearest``, that notices ``mutant``.
        None if none does.

        Raises TimeoutError where that is not known within ``seconds``.
        """
        question = {"mutant": mutant.name, "tests": [*tests], "nearest": [*nearest]}
        answer = self._ask({**question, "seconds": min(seconds, LONGEST)})
        if answer["is_late"]:
            raise TimeoutError
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


class Trial(NamedTuple):
    """A mutant to be tried on one database."""

    mutant: Mutant
    #: True if the noted test is tried alone; False if all that are near are.
    is_noted: bool


class Round:
    """Deals the mutants out to the databases, and keeps what came of each."""

    def __init__(
        self, mutants: Sequence[Mutant], killers: Killers, ends_at: float, *, keep: bool
    ) -> None:
        self.outcomes: dict[Mutant, str] = {}
        self._killers = killers
        self._keep = keep
        self._ends_at = ends_at
        self._lock = Lock()
        self._waiting: dict[str, deque[Trial]] = {"sqlite": deque(), "postgresql": deque()}
        self._at_work = 0
        for mutant in mutants:
            if noted := killers.noted(mutant):
                self._waiting[noted.database].append(Trial(mutant, is_noted=True))
            else:
                self._search(mutant)
        unknown = sum(not trial.is_noted for each in self._waiting.values() for trial in each)
        self._knows_reach = ends_at == float("inf") and unknown > REACH_PAYS_FROM

    def work(self, database: Database) -> None:
        """Try one after the other, until all are tried or the time is over."""
        if self._knows_reach:
            database.measure_reach()
        while (seconds := self._ends_at - time.monotonic()) > 0:
            with self._lock:
                trial = self._next(database.name)
                is_over = not self._at_work and not any(self._waiting.values())
            if trial is None:
                if is_over:
                    return
                time.sleep(0.1)  # what another lets pass comes here
                continue
            try:
                killer = self._killer(trial, database, seconds)
                with self._lock:
                    self._note(trial, database.name, killer)
            except TimeoutError:
                return
            finally:
                with self._lock:
                    self._at_work -= 1

    def _next(self, database: str) -> Trial | None:
        if not self._waiting[database]:
            return None
        self._at_work += 1
        return self._waiting[database].popleft()

    def _killer(self, trial: Trial, database: Database, seconds: float) -> str | None:
        mutant = trial.mutant
        with self._lock:
            likely = self._killers.likely(mutant)
        if trial.is_noted:
            return database.try_on(mutant, likely[:1], [], seconds)
        return database.try_on(mutant, likely, nearest_of(mutant.path), seconds)

    def _note(self, trial: Trial, database: str, killer: str | None) -> None:
        mutant = trial.mutant
        if killer is None and trial.is_noted:
            self._search(mutant)
            return
        if killer is None and database == "sqlite":
            self._waiting["postgresql"].appendleft(Trial(mutant, is_noted=False))
            return
        self.outcomes[mutant] = f"{killer} ({database})" if killer else SURVIVED
        if killer:
            self._killers.add(mutant, Killer(killer, database))
            if self._keep:
                self._killers.keep(all_mutants())
        print(f"{mutant.path}:{mutant.line} {mutant.name}\n    {self.outcomes[mutant]}", flush=True)

    def _search(self, mutant: Mutant) -> None:
        """Try all the tests near ``mutant``, before what is waiting: that takes longest."""
        is_sql = mutant.place.endswith(".sql") or mutant.path.startswith(ON_POSTGRESQL)
        first = "postgresql" if is_sql else "sqlite"
        self._waiting[first].appendleft(Trial(mutant, is_noted=False))


def main(args: Sequence[str]) -> int:
    """Try them, print the table, and sum up."""
    asked = _parser().parse_args(args)
    killers = Killers().learn(all_mutants())
    mutants = [m for m in all_mutants() if asked.only in m.name and m.name not in EXPLAINED]
    unnoted = [mutant for mutant in mutants if not killers.noted(mutant)]
    unknown = EXPLAINED.keys() - {mutant.name for mutant in all_mutants()}
    for name in sorted(unknown):
        print(f"explained, but not made any more: {name}")
    if asked.list:
        print(
            f"mutants: {len(mutants)} can be made, {len(unnoted)} of them without a noted test,"
            f" {len(unknown)} explained in vain"
        )
        return bool(unknown)
    if asked.new:
        mutants = unnoted
    random.Random(asked.seed).shuffle(mutants)

    began = time.monotonic()
    # A second pair takes longer to start than it saves of a short round.
    names = ["sqlite", "postgresql"] * (1 if asked.minutes or asked.only or asked.new else 2)
    databases = [Database(name) for name in names]
    for database in databases:
        database.wait_until_ready()
    ends_at = began + asked.minutes * 60 if asked.minutes else float("inf")
    trial = Round(mutants, killers, ends_at, keep=asked.keep)
    with ThreadPoolExecutor(len(databases)) as pool:
        at_work = [pool.submit(trial.work, database) for database in databases]
    for each in at_work:
        each.result()
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
    parser.add_argument("--new", action="store_true", help="only those without a noted test")
    parser.add_argument("--list", action="store_true", help="make them, and try none")
    parser.add_argument("--keep", action="store_true", help="write the table of killers")
    return parser


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
