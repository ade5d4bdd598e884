"""Record which test runs which function, and how long it takes: a full round of mutants goes by
it."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from tests.mutants.making import ROOT, Mutant, code_of, functions, module_of
from tests.mutants.running import forget_statements, function_of

#: What an instrumented function calls first, with its path and name.
_CALLED = "__mutants_reached__"


class Test(NamedTuple):
    """A test that passed: its seconds, and the functions that it ran."""

    seconds: float
    reached: frozenset[str]


class Reach:
    """The tests that reach each function, the quickest first."""

    def __init__(self, tests: dict[str, Test]) -> None:
        self._of_place: dict[str, list[str]] = defaultdict(list)
        for node_id, test in sorted(tests.items(), key=lambda each: each[1].seconds):
            for place in test.reached:
                self._of_place[place].append(node_id)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the function of ``mutant``, or one that names its constant."""
        if mutant.code is not None:
            return list(self._of_place[_key(mutant.path, mutant.place)])
        users = [_key(mutant.path, place) for place in _users(mutant.path, mutant.place)]
        return list(dict.fromkeys(test for user in users for test in self._of_place.get(user, [])))


class Recorder:
    """Notes what each test reaches: the code of every function of ``paths`` is exchanged for one
    that tells of its call."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.tests: dict[str, Test] = {}
        self._reached: set[str] = set()
        setattr(builtins, _CALLED, self._reached.add)
        for path in paths:
            for place, code in _instrumented(path):
                function = function_of(importlib.import_module(module_of(path)), place)
                if function.__code__.co_freevars == code.co_freevars:
                    function.__code__ = code

    @contextmanager
    def test(self, node_id: str) -> Iterator[None]:
        forget_statements()  # or those that compile are reached by the first test alone
        self._reached.clear()
        began = time.monotonic()
        yield
        self.tests[node_id] = Test(time.monotonic() - began, frozenset(self._reached))


def dump(tests: dict[str, Test], file: Path) -> None:
    """Write what ``load`` reads."""
    file.write_text(
        json.dumps({name: [test.seconds, sorted(test.reached)] for name, test in tests.items()})
    )


def load(file: Path) -> Reach:
    """Raises OSError and ValueError where the one who wrote did not get to the end."""
    read = json.loads(file.read_text()).items()
    return Reach({name: Test(seconds, frozenset(places)) for name, (seconds, places) in read})


def _key(path: str, place: str) -> str:
    return f"{path}:{place}"


def _instrumented(path: str) -> Iterator[tuple[str, CodeType]]:
    tree = ast.parse((ROOT / path).read_text())
    places = []
    for place, function in functions(tree):
        places.append(place)
        call = ast.Call(ast.Name(_CALLED, ast.Load()), [ast.Constant(_key(path, place))], [])
        function.body.insert(_has_docstring(function), ast.Expr(call))
    compiled = compile(ast.fix_missing_locations(tree), path, "exec")
    for place in places:
        yield place, code_of(compiled, place)


def _has_docstring(function: ast.FunctionDef) -> bool:
    return ast.get_docstring(function) is not None


def _users(path: str, constant: str) -> list[str]:
    tree = ast.parse((ROOT / path).read_text())
    return [
        place
        for place, function in functions(tree)
        if any(isinstance(node, ast.Name) and node.id == constant for node in ast.walk(function))
    ]
