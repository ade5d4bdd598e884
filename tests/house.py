"""Measure the structure of both packages from their imports: ``python -m tests.house``.

A room is what lies directly in a package: a file, or a folder with all that is in it. An arrow is
a pair of rooms of which one imports the other, for type checkers too. ``make check`` prints the
table; it fails where rooms close a circle of imports that run, where the top of a package holds
more than MAX_AT_TOP files, or where too many docstrings of public names begin with a question word.
Which room may import which is told by the contracts in
pyproject.toml, whose layers are read here too.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import grimp

from tests.plugin import ROOT

PACKAGES = ("leasing", "tasks")
MAX_AT_TOP = 28
#: A docstring begins with a verb or a noun: of those of public names at most so many per cent with
#: one of these.
MAX_QUESTIONS = 2.0
QUESTIONS = ("What", "Whether", "How", "Let", "Where", "Who")

Arrow = tuple[str, str]


@dataclass(frozen=True)
class Figures:
    """The measurements of one package."""

    at_the_top: int
    rooms: int
    arrows: int
    back_up: int
    circles: str
    pairs: int
    questions: str

    def cells(self) -> list[str]:
        return [f"{value:,}" if isinstance(value, int) else value for value in vars(self).values()]


ROWS = [
    "Python files at the top",
    "rooms",
    "arrows between rooms",
    "arrows that run back up",
    "circles (files in them)",
    "pairs from a room of tasks to a room of leasing",
    "docstrings that begin with a question word",
]
#: Before there were folders, and as the folders were planned.
BEFORE = {
    "leasing": Figures(104, 108, 444, 11, "5 (20)", 0, "19.2 %"),
    "tasks": Figures(98, 105, 429, 5, "1 (38)", 280, "22.8 %"),
}
PLAN = {
    "leasing": Figures(25, 45, 206, 1, "1 (6)", 0, "2.0 %"),
    "tasks": Figures(20, 40, 165, 1, "1 (26)", 138, "2.0 %"),
}


class House:
    """The packages as their imports show them; without those for type checkers if ``running``."""

    def __init__(self, *, running: bool) -> None:
        self._graph = grimp.build_graph(
            *PACKAGES, exclude_type_checking_imports=running, cache_dir=None
        )
        self._imports = {
            module: self._graph.find_modules_directly_imported_by(module)
            for module in self._graph.modules
        }

    def figures(self, package: str, layers: list[set[str]]) -> Figures:
        arrows = self.arrows(package, package)
        circles = self._circles_of_files(package)
        floor = {room: number for number, rooms in enumerate(layers) for room in rooms}
        return Figures(
            at_the_top=len(list((ROOT / package).glob("*.py"))),
            rooms=len({room_of(module) for module in self._within(package)}),
            arrows=len(arrows),
            back_up=sum(
                floor.get(there.partition(".")[2], 0) <= floor.get(here.partition(".")[2], 0)
                for here, there in arrows
            ),
            circles=f"{len(circles)} ({sum(map(len, circles))})",
            pairs=len(self.arrows("tasks", "leasing")) if package == "tasks" else 0,
            questions=f"{questions_of(package):.1f} %",
        )

    def arrows(self, package: str, other: str) -> set[Arrow]:
        """Pairs of rooms: one of ``package``, and one of ``other`` that it imports."""
        pairs = {
            (room_of(module), room_of(imported))
            for module in self._within(package)
            for imported in self._imports[module]
            if imported.partition(".")[0] == other
        }
        return {(here, there) for here, there in pairs if here != there}

    def _within(self, package: str) -> list[str]:
        return [module for module in self._imports if module.partition(".")[0] == package]

    def _circles_of_files(self, package: str) -> list[set[str]]:
        """The sets of files each of which reaches every other by imports."""
        own = set(self._within(package))
        reached = {
            module: self._graph.find_upstream_modules(module) & own
            for module in own
            if self._imports[module] & own
        }
        circles: list[set[str]] = []
        for module, above in reached.items():
            circle = {other for other in above if module in reached.get(other, ())}
            if circle and not any(module in known for known in circles):
                circles.append({module, *circle})
        return circles


def room_of(module: str) -> str:
    """The room in which ``module`` lies; the package itself for what is in its ``__init__``."""
    return ".".join(module.split(".")[:2])


def circle_of(arrows: Iterable[Arrow]) -> list[str]:
    """Rooms each of which imports the next, and the last the first; none where nothing does."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for here, there in arrows:
        sorter.add(here, there)
    try:
        sorter.prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def layers_of(package: str) -> list[set[str]]:
    """The layers of the package's contract, top down."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (
        contract for contract in settings["contracts"] if contract.get("containers") == [package]
    )
    return [{name.strip() for name in layer.split("|")} for layer in contract["layers"]]


def questions_of(package: str) -> float:
    """Return the share, in per cent, of the public names' docstrings that begin with QUESTIONS."""
    found = []
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                words = (ast.get_docstring(node) or "").split()
                if words and not getattr(node, "name", "").startswith("_"):
                    found.append(words[0] in QUESTIONS)
    return 100 * sum(found) / len(found)


def table(reached: dict[str, Figures]) -> str:
    """Both packages: before, planned, reached."""
    columns = [each[package].cells() for package in PACKAGES for each in (BEFORE, PLAN, reached)]
    lines = [
        ["", *(f"{package} {kind}" for package in PACKAGES for kind in ("before", "plan", "now"))]
    ]
    lines += [list(line) for line in zip(ROWS, *columns, strict=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main() -> int:
    """Print the table, and what is not as it must be."""
    house, running = House(running=False), House(running=True)
    reached = {package: house.figures(package, layers_of(package)) for package in PACKAGES}
    print(table(reached))
    wrong = [
        f"{package}: {figures.at_the_top} files at the top, at most {MAX_AT_TOP} may be"
        for package, figures in reached.items()
        if figures.at_the_top > MAX_AT_TOP
    ]
    for package in PACKAGES:
        if (share := questions_of(package)) > MAX_QUESTIONS:
            wrong.append(
                f"{package}: {share:.1f} % of public docstrings begin with a question word"
            )
        if circle := circle_of(running.arrows(package, package)):
            wrong.append(f"a circle of imports that run: {' -> '.join(circle)}")
    for sentence in wrong:
        print(sentence)
    print(f"house: {len(wrong)} faults" if wrong else "house: no circle of imports that run")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
