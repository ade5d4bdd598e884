"""Makes mutants: the code of one function with one condition of it left out or bent.

A function is taken from its source, changed in its syntax tree, compiled, and found again by its
qualified name: a process of its own gives the living function that code. Nothing is written to
the tree, and a mutant costs no import.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parent.parent.parent

#: Methods that narrow a queryset by a condition.
NARROWING = frozenset(
    {
        "active",
        "available",
        "cancelled",
        "due",
        "ended",
        "expired",
        "failed",
        "grantable",
        "holding",
        "ready",
        "released",
        "running",
        "stalled",
        "succeeded",
        "unexpired",
    }
)
#: Calls that stand alone, and whose absence nobody but a test would notice.
GUARDS = frozenset({"_lock", "ensure", "limit_waiting", "lock", "look", "refuse_transaction"})
#: Each the other, when a comparison is bent by its edge.
EDGES = {"lt": "lte", "lte": "lt", "gt": "gte", "gte": "gt"}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
SQL_EDGES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
#: A condition of SQL that is one of several: up to the next one, or the end of its brackets.
SQL_CONDITION = re.compile(
    r"\sAND\s+(?:[^()\n]|\((?:[^()]|\([^()]*\))*\))+?(?=\sAND\s|\sOR\s|\n|\)|;|$)"
)
#: Two conditions or values of which one counts.
SQL_EITHER = re.compile(
    r"(?:GREATEST|LEAST|COALESCE)\(((?:[^(),]|\([^()]*\))+), ((?:[^()]|\([^()]*\))+)\)"
    r"|\(((?:[^()]|\([^()]*\))+?) OR ((?:[^()]|\([^()]*\))+)\)"
)
SQL_EDGE = re.compile(r"(?<= )(<=|>=|<|>)(?= )")


@dataclass(frozen=True)
class Mutant:
    """One function, bent in one place."""

    path: str
    #: The qualified name of the function, or the name of the constant; "function.sql" is the SQL
    #: that a decorator gives it, of which ``value`` is the bent expression.
    place: str
    line: int
    #: The condition before, and after.
    bent: str
    code: CodeType | None = field(repr=False, compare=False, hash=False, default=None)
    value: Any = field(repr=False, compare=False, hash=False, default=None)

    @property
    def module(self) -> str:
        return module_of(self.path)

    @property
    def name(self) -> str:
        """The mutant in a line, which stays the same while lines above it come and go."""
        return f"{self.module}.{self.place}: {self.bent}"


#: What chooses between two forms of one verb, or whether anybody is told: no condition of a row.
CHOICES = frozenset(
    {
        "_is_granted_in_one",
        "_is_in_one",
        "is_noted",
        "keeps_events",
        "notes",
        "plain",
        "serves",
        "suits",
        "tracer",
    }
)

#: What stands in the place of a node, and how that reads.
Change = tuple[ast.AST, str]


def module_of(path: str) -> str:
    """The dotted name of the module at ``path``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def of_file(path: str) -> Iterator[Mutant]:
    """The mutants of all functions and constants of the file at ``path``."""
    tree = ast.parse((ROOT / path).read_text())
    seen: dict[str, int] = {}
    for mutant in _of_tree(path, tree):
        # Of two that read alike, the second is "... (2)".
        seen[mutant.name] = number = seen.get(mutant.name, 0) + 1
        if number > 1:
            mutant = Mutant(
                path,
                mutant.place,
                mutant.line,
                f"{mutant.bent} ({number})",
                mutant.code,
                mutant.value,
            )
        yield mutant


def of_text(path: str, place: str, before: str, after: str, bent: str) -> Mutant:
    """The mutant of the function ``place`` in which ``before`` reads ``after``.

    Raises ValueError where the file has not exactly one ``before``.
    """
    source = (ROOT / path).read_text()
    if source.count(before) != 1:
        raise ValueError(f"{path} has {source.count(before)} times {before!r}, not once")
    line = source[: source.index(before)].count("\n") + 1
    code = code_of(compile(source.replace(before, after), path, "exec"), place)
    return Mutant(path, place, line, bent, code)


def of_constant(path: str, name: str, before: str, after: str, bent: str) -> Mutant:
    """The mutant of the text ``name`` of a file in which ``before`` reads ``after``."""
    for statement in ast.parse((ROOT / path).read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            text = ast.literal_eval(statement.value)
            if text.count(before) == 1:
                value = text.replace(before, after)
                return Mutant(path, name, statement.lineno, bent, value=value)
    raise ValueError(f"{path} has no text {name} with {before!r} in it once")


def _of_tree(path: str, tree: ast.Module) -> Iterator[Mutant]:
    whole = compile(tree, path, "exec")
    for place, function in functions(tree):
        if code_of(whole, place).co_freevars == ("__class__",):
            # Bent code that calls no super() any more would not fit the living function.
            function.body.append(ast.Expr(ast.Name("__class__", ast.Load())))
        for parent, name, index, child in _nodes(function):
            for after, bent in _changes(child):
                line = getattr(child, "lineno", function.lineno)
                restore = _exchange(parent, name, index, after)
                code = code_of(compile(ast.fix_missing_locations(tree), path, "exec"), place)
                restore()
                yield Mutant(path, place, line, bent, code)
        yield from _of_sql(path, tree, place, function)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            target = statement.targets[0]
            assert isinstance(target, ast.Name)
            for after, bent in _of_string(statement.value):
                assert isinstance(after, ast.Constant)
                yield Mutant(path, target.id, statement.lineno, bent, value=after.value)


def _of_sql(path: str, tree: ast.Module, place: str, function: ast.FunctionDef) -> Iterator[Mutant]:
    """The mutants of the SQL that ``in_sql`` gives a function."""
    texts = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and _name(decorator.func) == "in_sql":
            given = decorator.args[0]
            if isinstance(given, ast.Name):
                given = texts.get(given.id, given)
            whole = ast.Expression(given)
            for parent, name, index, child in [*_nodes(whole)]:
                for after, bent in _of_string(child) if isinstance(child, ast.Constant) else ():
                    restore = _exchange(parent, name, index, after)
                    value = ast.unparse(whole)
                    restore()
                    yield Mutant(path, f"{place}.sql", function.lineno, bent, value=value)


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions of modules and classes, by their qualified names."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.FunctionDef):
            yield f"{within}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Each node below ``tree`` with where it hangs."""
    for name, value in ast.iter_fields(tree):
        if isinstance(tree, ast.FunctionDef) and name != "body":
            continue  # defaults, decorators and annotations are no conditions
        if isinstance(tree, ast.Expr) and isinstance(value, ast.Constant):
            continue  # a docstring
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.AST):
                yield tree, name, index, child
                yield from _nodes(child)


def _exchange(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> Callable[[], None]:
    """Put ``node`` there, and return what puts back what was there."""
    if index is None:
        before = getattr(parent, name)
        setattr(parent, name, node)
        return lambda: setattr(parent, name, before)
    within = getattr(parent, name)
    before = within[index]
    within[index] = node

    def restore() -> None:
        within[index] = before

    return restore


def code_of(code: CodeType, place: str) -> CodeType:
    """The code of the function of that qualified name, within that of its module."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == place:
                return constant
            if place.startswith(f"{constant.co_qualname}."):
                return code_of(constant, place)
    raise ValueError(f"no function {place}")


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield the ways to bend ``node``."""
    match node:
        case ast.Call():
            yield from _of_call(node)
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd()) if _is_condition(node):
            yield from _alone(node, [node.left, node.right])
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=1)):
            yield node.left, _reads(node, node.left)
        case ast.BoolOp() if not CHOICES & _names(node):
            for value in node.values:
                others = [copy.copy(other) for other in node.values if other is not value]
                left = others[0] if len(others) == 1 else ast.BoolOp(node.op, others)
                yield left, _reads(node, left)
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            bent = ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
            yield bent, _reads(node, bent)
        case ast.comprehension(ifs=[_, *_]):
            bent_for = ast.comprehension(node.target, node.iter, [], node.is_async)
            yield bent_for, f"without `if {ast.unparse(node.ifs[0])}`"
        case ast.Expr(value=ast.Call(func=called)) if _name(called) in GUARDS:
            yield ast.Pass(), f"without `{ast.unparse(node)}`"
        case ast.Constant(value=str()):
            yield from _of_string(node)


def _of_call(node: ast.Call) -> Iterator[Change]:
    name = _name(node.func)
    if name in NARROWING and isinstance(node.func, ast.Attribute) and not node.args:
        yield node.func.value, f"without .{name}()"
    if name in ("filter", "exclude", "Q", "When", "Exact"):
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg == "then":
                continue
            others = [other for other in node.keywords if other is not keyword]
            if name != "When" or len(others) > 1:
                bent = ast.Call(node.func, node.args, others)
                yield bent, f"without {ast.unparse(keyword)} in .{name}"
            field_name, _, lookup = keyword.arg.rpartition("__")
            if lookup in EDGES:
                other = ast.keyword(f"{field_name}__{EDGES[lookup]}", keyword.value)
                at_edge = [other if each is keyword else each for each in node.keywords]
                yield ast.Call(node.func, node.args, at_edge), _reads(keyword, other)
    if name in ("filter", "exclude"):
        for argument in node.args:
            kept = [each for each in node.args if each is not argument]
            bent = ast.Call(node.func, kept, node.keywords)
            yield bent, f"without {ast.unparse(argument)} in .{name}"
    if name in ("Greatest", "Least") and len(node.args) == 2:
        yield from _alone(node, node.args)
    if name == "lock" and node.args:
        yield node.args[0], f"without the lock of {ast.unparse(node.args[0])}"
        for keyword in node.keywords:
            others = [other for other in node.keywords if other is not keyword]
            bent = ast.Call(node.func, node.args, others)
            yield bent, f"without {ast.unparse(keyword)} of lock"


def _alone(node: ast.AST, sides: list[ast.expr]) -> Iterator[Change]:
    for side in sides:
        yield side, _reads(node, side)


def _of_string(node: ast.Constant) -> Iterator[Change]:
    text = node.value
    if not isinstance(text, str):
        return
    for found in SQL_CONDITION.finditer(text):
        without = text[: found.start()] + text[found.end() :]
        yield ast.Constant(without), f"without `{' '.join(found[0].split())}`"
    for lock in ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE", "SKIP LOCKED"):
        if lock in text:
            yield ast.Constant(text.replace(lock, "")), f"without {lock}"
    for found in SQL_EITHER.finditer(text):
        for side in filter(None, found.groups()):
            bent = text[: found.start()] + side + text[found.end() :]
            yield ast.Constant(bent), f"{side} for {found[0]}"
    for found in re.finditer(r" \+ 1\b", text):
        bent = text[: found.start()] + text[found.end() :]
        yield ast.Constant(bent), f"without + 1 in `{' '.join(text.split())[:48]}`"
    for found in SQL_EDGE.finditer(text):
        other = SQL_EDGES[found[1]]
        around = text[max(0, found.start() - 24) : found.end() + 24]
        bent = text[: found.start()] + other + text[found.end() :]
        yield ast.Constant(bent), f"{other} in `{' '.join(around.split())}`"
    if "STATEMENT_TIMESTAMP" in text:
        bent = text.replace("STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP")
        yield ast.Constant(bent), "the time of the transaction"


def _is_condition(node: ast.AST) -> bool:
    """Return True if ``node`` joins conditions of a query: some Q, or a name in capitals."""
    return any(
        (isinstance(each, ast.Call) and _name(each.func) in ("Q", "Exact"))
        or (isinstance(each, ast.Name) and (each.id.isupper() or each.id in ("mine", "over")))
        for each in ast.walk(node)
    )


def _names(node: ast.AST) -> set[str]:
    return {_name(each) for each in ast.walk(node)}


def _reads(before: ast.AST, after: ast.AST) -> str:
    return f"{ast.unparse(after)} for {ast.unparse(before)}"


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
