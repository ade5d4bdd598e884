"""Count where tests depend on the inside of both packages.

``tests/scale.json`` holds these counts below a ceiling, beside the weights: a test that replaces a
function of the product, or reads a private name, breaks when the inside changes although the
behaviour stays.

A patch is a ``setattr`` or ``delattr`` of pytest's ``monkeypatch``, a ``patch`` of
``unittest.mock``, or an assignment to an attribute of an imported module or class. It counts as an
own one unless its target was imported from another library or from the tests, or is a class of the
same file. A patch for every test is one in an autouse fixture of a ``conftest.py``. A private name
is one with a leading underscore, of anything but ``self`` and ``cls``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

OWN = ("leasing", "tasks")
#: What Django and Python spell with an underscore, and document.
PUBLIC = {"_meta", "_state", "_default_manager", "_base_manager", "_asdict", "_replace", "_exit"}
TESTS = "tests"
OWN_PATCHES = "tests: patches of own code"
STRING_TARGETS = "tests: patches by a string"
FOR_EVERY_TEST = "tests: patches for every test"
PRIVATE_NAMES = "tests: private names"

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def count(files: Iterable[Path]) -> dict[str, int]:
    """Return the sums of these files: the number of test functions, and what has a ceiling."""
    names = (TESTS, OWN_PATCHES, STRING_TARGETS, FOR_EVERY_TEST, PRIVATE_NAMES)
    counts = Counter(dict.fromkeys(names, 0))
    for file in files:
        tree = ast.parse(file.read_text())
        counts.update(_count(tree, dict(_imports(tree)), is_shared=file.name == "conftest.py"))
    return dict(counts)


def _count(tree: ast.Module, imported: dict[str, str], *, is_shared: bool) -> Iterator[str]:
    autouse = {
        each
        for node in ast.walk(tree)
        if isinstance(node, Functions) and any(map(_is_autouse, node.decorator_list))
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, Functions) and node.name.startswith("test_"):
            yield TESTS
        if _is_private(node):
            yield PRIVATE_NAMES
        is_string, target = _patched(node, imported)
        if target is None:
            continue
        if is_string:
            yield STRING_TARGETS
        if target.split(".")[0] in (*OWN, ""):
            yield OWN_PATCHES
        if is_shared and node in autouse:
            yield FOR_EVERY_TEST


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what each imported name stands for, and each class of the file itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, f"tests.{node.name}"
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"
        elif isinstance(node, ast.Import):
            for each in node.names:
                yield (each.asname or each.name).split(".")[0], each.name


def _is_autouse(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(
        each.arg == "autouse" and getattr(each.value, "value", False) for each in decorator.keywords
    )


def _is_private(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
        return False
    of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return not of_itself and not node.attr.startswith("__") and node.attr not in PUBLIC


def _patched(node: ast.AST, imported: dict[str, str]) -> tuple[bool, str | None]:
    """Return True if the target of a patch is a string, and the target's dotted name, which begins
    with a dot where it is a local name's; None: ``node`` is no patch."""
    if isinstance(node, ast.Assign):
        for each in node.targets:
            name = _root(each)
            if isinstance(each, ast.Attribute) and name in imported:
                return False, imported[name]
        return False, None
    if not isinstance(node, ast.Call) or not node.args:
        return False, None
    called = ast.unparse(node.func)
    by_mock = called.split(".")[-1] == "patch" or called.endswith("patch.object")
    if not by_mock and not called.endswith((".setattr", ".delattr")):
        return False, None
    target = node.args[0]
    if isinstance(target, ast.Constant):
        return True, str(target.value)
    root = _root(target)
    return isinstance(target, ast.JoinedStr), imported.get(root, "." + root)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
