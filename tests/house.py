"""Weigh both packages against the table of what they may weigh: ``python -m tests.house``.

``tests/scale.json`` is the table. Its figures may only fall: ``make check`` fails where the
packages weigh more, and ``make scale`` writes what they weigh now. A commit that raises a figure
changes the table, and its body says what the weight pays for. A code line holds more than a comment
or a docstring; a node is one of the syntax tree, which joining lines does not change; a function is
a lambda too; migrations do not count. ``tests/hops.py`` counts the hops, which
``tests/test_scale.py`` holds to the same table. ``tests/coupling.py`` counts where tests depend on
the inside, which has its ceilings there too; how many tests there are, and their code lines, are
printed alone. Benchmarks are no tests.

A room is what lies directly in a package: a file, or a folder with all that is in it. Rooms must
not close a circle of imports that run. The contracts in pyproject.toml say which room may import
which.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

from tests import coupling
from tests.plugin import ROOT

PACKAGES = ("leasing", "tasks")
TABLE = Path(__file__).with_name("scale.json")
#: Tokens that make no line a code line.
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}

Figures = dict[str, int]


def weigh(places: Iterable[Path]) -> Figures:
    """Return the sums of all Python files in ``places``: folders, or files."""
    files = [file for each in places for file in (each.rglob("*.py") if each.is_dir() else [each])]
    weights = [_weight(each) for each in files if each.parent.name != "migrations"]
    return {**sum(weights, Counter()), "files": len(weights)}


def _weight(file: Path) -> Counter[str]:
    source = file.read_text()
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = [node for node in nodes if _is_docstring(node)]
    documented = {line for node in docstrings for line in _lines(node)}
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return Counter(
        {
            "code lines": len(code - documented),
            "syntax nodes": len(nodes) - 2 * len(docstrings),  # the statement, and its text
            "functions": sum(isinstance(node, functions) for node in nodes),
        }
    )


def _is_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _lines(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1)


def rises(figures: Figures, table: Figures) -> list[str]:
    """Return a sentence for each of ``figures`` that is above the table's."""
    return [
        f"{name}: {figure:,}, and the table allows {table[name]:,}"
        for name, figure in figures.items()
        if figure > table[name]
    ]


def circle(package: str) -> list[str]:
    """Return rooms of the package each of which imports the next, and the last the first; none
    where nothing does."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if _room(module) != _room(imported):
                sorter.add(_room(module), _room(imported))
    try:
        sorter.prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def main(*, writes: bool) -> int:
    """Print what is not as it must be, or write the table."""
    figures = weigh(ROOT / package for package in PACKAGES)
    tests = [each for each in TABLE.parent.rglob("*.py") if "benchmarks" not in each.parts]
    coupled = coupling.count(tests)
    functions, lines = coupled.pop(coupling.TESTS), weigh(tests)["code lines"]
    figures |= coupled
    if writes:
        from tests import hops

        TABLE.write_text(json.dumps({**figures, **hops.measured()}, indent=1) + "\n")
    wrong = rises(figures, json.loads(TABLE.read_text()))
    circles = [" -> ".join(found) for package in PACKAGES if (found := circle(package))]
    wrong += [f"a circle of imports that run: {each}" for each in circles]
    weights = ", ".join(f"{name} {figure:,}" for name, figure in figures.items())
    print(f"house: {functions:,} tests, {lines:,} code lines of tests; {weights}")
    print("\n".join([*wrong, f"house: {len(wrong)} faults"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(writes="--write" in sys.argv))
