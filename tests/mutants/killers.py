"""The table of mutants and of the tests that noticed them, which ``make mutants KEEP=1`` writes.

``killers.json`` has a line for each: the mutant, the test, and the database on which it noticed.
That test is tried first, on that database. Where it notices nothing any more, those follow that
noticed another mutant of the same function or the same file, and then those near the file.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.making import Mutant

FILE = Path(__file__).with_name("killers.json")
#: Tests that are tried before those that are nearest.
MOST = 12


class Killer(NamedTuple):
    """A test that noticed a mutant, and the database it ran on."""

    test: str
    database: str

    def __str__(self) -> str:
        return f"{self.test} ({self.database})"

    @classmethod
    def read(cls, text: str) -> Killer:
        """The one that reads like this."""
        test, _, database = text.rpartition(" (")
        return cls(test, database.removesuffix(")"))


class Killers:
    """The tests that noticed each mutant."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        noted = json.loads(file.read_text()) if file.exists() else {}
        self._of_mutant = {name: Killer.read(text) for name, text in noted.items()}
        self._of_place: dict[tuple[str, str], Counter[str]] = {}
        self._of_path: dict[str, Counter[str]] = {}

    def learn(self, mutants: tuple[Mutant, ...]) -> Killers:
        """Count the known killers of ``mutants`` by function and by file."""
        for mutant in mutants:
            if killer := self.noted(mutant):
                self._count(mutant, killer)
        return self

    def add(self, mutant: Mutant, killer: Killer) -> None:
        """Note which test noticed ``mutant``."""
        self._of_mutant[mutant.name] = killer
        self._count(mutant, killer)

    def noted(self, mutant: Mutant) -> Killer | None:
        """The test that noticed ``mutant`` in an earlier round."""
        return self._of_mutant.get(mutant.name)

    def likely(self, mutant: Mutant) -> list[str]:
        """The tests that will probably notice ``mutant``, the likeliest first."""
        known = self.noted(mutant)
        found = dict.fromkeys([known.test] if known else [])
        for counts in (
            self._of_place.get((mutant.path, mutant.place)),
            self._of_path.get(mutant.path),
        ):
            found |= dict.fromkeys(test for test, _ in (counts or Counter[Any]()).most_common())
        return list(found)[:MOST]

    def keep(self, mutants: tuple[Mutant, ...]) -> None:
        """Write the killers of ``mutants``, and of no other, to the file."""
        kept = {m.name: str(killer) for m in mutants if (killer := self.noted(m))}
        self._file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")

    def _count(self, mutant: Mutant, killer: Killer) -> None:
        self._of_place.setdefault((mutant.path, mutant.place), Counter())[killer.test] += 1
        self._of_path.setdefault(mutant.path, Counter())[killer.test] += 1
