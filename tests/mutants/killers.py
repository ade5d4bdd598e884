"""The table of mutants and of the tests that noticed them, which ``make mutants KEEP=1`` writes.

The test that noticed a mutant last time is tried first, and then those that noticed another one of
the same function or the same file: most mutants need no other.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutants.making import Mutant

FILE = Path(__file__).with_name("killers.json")
#: Tests that are tried before those that are nearest.
MOST = 12


class Killers:
    """The tests that noticed each mutant."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._of_mutant: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        self._of_place: dict[tuple[str, str], Counter[str]] = {}
        self._of_path: dict[str, Counter[str]] = {}

    def learn(self, mutants: tuple[Mutant, ...]) -> Killers:
        """Count the known killers of ``mutants`` by function and by file."""
        for mutant in mutants:
            if killer := self._of_mutant.get(mutant.name):
                self._count(mutant, killer)
        return self

    def add(self, mutant: Mutant, killer: str) -> None:
        """Note which test noticed ``mutant``."""
        self._of_mutant[mutant.name] = killer
        self._count(mutant, killer)

    def knows(self, mutant: Mutant) -> bool:
        """Return True if a test noticed ``mutant`` in an earlier round."""
        return mutant.name in self._of_mutant

    def likely(self, mutant: Mutant) -> list[str]:
        """The tests that will probably notice ``mutant``, the likeliest first."""
        known = self._of_mutant.get(mutant.name)
        found = dict.fromkeys([known] if known else [])
        for counts in (
            self._of_place.get((mutant.path, mutant.place)),
            self._of_path.get(mutant.path),
        ):
            found |= dict.fromkeys(test for test, _ in (counts or Counter[Any]()).most_common())
        return list(found)[:MOST]

    def keep(self, mutants: tuple[Mutant, ...]) -> None:
        """Write the killers of ``mutants``, and of no other, to the file."""
        kept = {m.name: self._of_mutant[m.name] for m in mutants if m.name in self._of_mutant}
        self._file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")

    def _count(self, mutant: Mutant, killer: str) -> None:
        self._of_place.setdefault((mutant.path, mutant.place), Counter())[killer] += 1
        self._of_path.setdefault(mutant.path, Counter())[killer] += 1
