"""The pages that come from the code: settings, metrics, codes of diagnoses, ids of system checks.

The code is parsed, not run: a metric, for example, may be there only while something happens.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The id of a system check.
CHECK = r"leasing\w*\.[EWI]\d+"
METRIC = r"(?:leasing|tasks)_[a-z_]+"
SEVERITIES = ("ok", "info", "warning", "critical")
#: Pages that say more about a setting.
MORE = {
    "DATABASE": "deployment.md#several-databases",
    "LISTEN_URL": "deployment.md#pgbouncer",
    "ENABLED": "testing.md#without-a-database",
    "STORES": "stores.md",
    "API_ACCESS": "sample-service.md#the-compatible-mode",
    "API_COMPATIBLE_HOSTS": "sample-service.md",
    "API_MAX_WAIT": "http-api.md#wait",
    "API_TRUSTED_PROXIES": "sample-service.md#behind-a-proxy",
    "READ_ONLY": "audit.md#read-only",
    "METRICS": "metrics.md",
    "TRACES": "tracing.md",
    "EXAMINE_EVERY": "housekeeping.md#invalid-states",
    "RETENTION": "housekeeping.md#retention",
    "SAMPLES": "audit.md#samples",
    "ANSWER_TIMEOUT": "workers.md#connections",
    "GENERATOR_STORE": "sample-service.md#the-generator",
    "CELERY_APP": "celery.md",
    "OUTBOX_EXCHANGE": "outbox.md#over-celery",
    "OUTBOX_PUBLISHER": "outbox.md",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {
        "checks": checks_page(),
        "diagnosis-codes": codes_page(),
        "metrics-reference": metrics_page(),
        "settings": settings_page(),
    }


def settings_page() -> str:
    """Return the page of the settings, from the classes that hold their defaults."""
    head = """# Settings

Times are in seconds, unless another unit is named. Settings are read live, but a term keeps the
`RENEW_EVERY` and `MARGIN` with which it began. `manage.py check` reports unknown names with a
suggestion, and a dictionary whose name is nearly one of these two.
"""
    return head + "".join(
        f"\n## {name}\n\n| name | default | |\n|---|---|---|\n"
        + "".join(f"| `{key}` | {default} | {text} |\n" for key, default, text in _settings(path))
        for name, path in (("LEASING", "leasing/conf.py"), ("TASK_QUEUE", "tasks/conf.py"))
    )


def _settings(path: str) -> Iterator[tuple[str, str, str]]:
    source = (ROOT / path).read_text()
    lines = source.splitlines()
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name = each.target.id
            if not name.isupper() or not each.col_offset or each.value is None:
                continue
            above = each.lineno - 1
            said: list[str] = []
            while lines[above - 1].strip().startswith("#:"):
                above -= 1
                said.insert(0, lines[above].strip()[2:].strip())
            text = re.sub("``(.*?)``", r"`\1`", " ".join(said))
            more = f" [More]({MORE[name]})." if name in MORE else ""
            yield name, f"`{_default(each.value)}`", _cell(text) + more


def _default(value: ast.expr) -> str:
    text = ast.unparse(value)
    if re.fullmatch(r"[\d_. *]+", text):
        number = float(eval(text))
        return f"{number:.0f}" if number.is_integer() else f"{number:g}"
    return text.replace("'", '"')


def metrics_page() -> str:
    """Return the page of the metrics, from the code that makes them."""
    head = """# All metrics

[Metrics](metrics.md) says where each of the two sources is read, and what the labels mean.
"""
    parts = {
        "Of processes": ("leasing/metrics/process.py", "tasks/metrics/process.py"),
        "Of the database": (
            "leasing/metrics/leases.py",
            "tasks/metrics/database.py",
            "leasing/metrics/database.py",
        ),
    }
    return head + "".join(
        f"\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n"
        + "".join(
            f"| `{name}` | {kind} | {', '.join(f'`{each}`' for each in labels)} | {_cell(text)} |\n"
            for path in paths
            for name, kind, labels, text in _metrics(path)
        )
        for title, paths in parts.items()
    )


def _metrics(path: str) -> Iterator[tuple[str, str, list[str], str]]:
    """Name, type, labels and help of each metric that a file makes, in its order."""
    tree = ast.parse((ROOT / path).read_text())
    rows: list[tuple[int, str, str, list[str], str]] = []
    lists: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=constant)], value=ast.List() as value):
                lists[constant] = value
            case ast.Assign(
                value=ast.Call(
                    func=ast.Name(id="Counter" | "Histogram" as maker),
                    args=[ast.Constant(value=str(name)), help_text, labelled],
                )
            ):
                labels = ast.literal_eval(lists.get(getattr(labelled, "id", ""), labelled))
                text = ast.literal_eval(help_text)
                rows.append((node.lineno, name, maker.lower(), labels, text))
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        texts = _assignments(function, 10**6)
        # The call that makes a family of each row of a table, if there is one.
        of_rows = [
            call
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and getattr(call.func, "id", "") == "Family"
            and isinstance(call.args[0], ast.JoinedStr | ast.Name)
        ]
        for node in ast.walk(function):
            name, (text, *labels) = _named(node)
            if not name:
                continue
            maker = getattr(getattr(node, "func", None), "id", "")
            if isinstance(node, ast.Tuple):
                labels = of_rows[0].args[2:]
                name = _text(of_rows[0].args[0], {}).partition("...")[0] + name
            elif maker == "_moment":
                labels = []
            kind = "counter" if name.endswith("_total") else "gauge"
            words = [word for label in labels for word in _labels(label)]
            rows.append((getattr(node, "lineno", 0), name, kind, words, _text(text, texts)))
    for _, *row in sorted(rows):
        yield row[0], row[1], row[2], row[3]


def _named(node: ast.AST) -> tuple[str, list[ast.expr]]:
    """Return the name of the metric that a call or a row of a table describes, and the rest."""
    match node:
        case ast.Call(func=ast.Name(id=maker), args=[ast.Constant(value=str(name)), *rest]):
            if maker in ("Family", "_moment"):
                return name, rest
        case ast.Tuple(elts=[ast.Constant(value=str(name)), *rest]) if rest:
            if re.fullmatch(METRIC, name) or name.endswith(("_total", "_rows", "_bytes")):
                return name, rest
    return "", [ast.Constant("")]


def _labels(node: ast.expr) -> list[str]:
    match node:
        case ast.Constant(value=str(label)):
            return [label]
        case ast.Name(id=name):
            return [name.lower()]
        case ast.Starred(value=ast.Tuple(elts=each)):
            return [label for element in each for label in _labels(element)]
    return []


def codes_page() -> str:
    """Return the page of the codes of diagnoses, from the functions that make them."""
    head = """# Codes of diagnoses

`manage.py tasks explain` and `leases show`, the pages, the admin and the API explain a row in
sentences; programs read the code. `...` stands for a part that varies.
"""
    parts = {"Of tasks": "tasks", "Of leases": "leasing"}
    return head + "".join(
        f"\n## {title}\n\n| code | severity | it says | what happens next |\n|---|---|---|---|\n"
        + "".join(
            f"| `{code}` | {severity} | {_cell(says)} | {_cell(then)} |\n"
            for code, severity, says, then in sorted(set(_codes(package)))
        )
        for title, package in parts.items()
    )


def _codes(package: str) -> Iterator[tuple[str, str, str, str]]:
    for path in sorted((ROOT / package / "diagnosis").glob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            name.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name)
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call):
                        yield from _codes_of(call, function, constants)


def _codes_of(
    call: ast.Call, function: ast.FunctionDef, constants: dict[str, ast.expr]
) -> Iterator[tuple[str, str, str, str]]:
    given = {each.arg: each.value for each in call.keywords}
    arguments = list(call.args)
    if "code" in given:
        arguments = [given[name] for name in ("code", "severity", "headline", "next")]
    # After the row, its time and the like.
    places = [at for at, each in enumerate(arguments) if _severity(each)]
    if places and places[0] and len(arguments) > places[0] + 2:
        code, severity, headline, then = arguments[places[0] - 1 : places[0] + 3]
        texts = constants | _assignments(function, call.lineno)
        if isinstance(code, ast.Constant):
            yield (
                str(code.value),
                _text(severity, texts),
                _text(headline, texts),
                _text(then, texts),
            )
    elif [getattr(each, "id", "") for each in arguments[:2]] == ["code", "severity"]:
        # Assigned in branches, each next to its words.
        for line in [node.lineno for node in _assigned(function) if "code" in _names(node)]:
            texts = constants | _assignments(function, line + 2)
            code, severity, headline, then = (
                _text(texts[each], texts) for each in ("code", "severity", "headline", "next_")
            )
            yield code, severity, headline, then


def _severity(node: ast.expr) -> str:
    """Return the severity that an argument is, or the two of which it is one; "" for another."""
    match node:
        case ast.Constant(value=str(text)) if text in SEVERITIES:
            return text
        case ast.IfExp(body=ast.Constant(value=one), orelse=ast.Constant(value=other)):
            return f"{one} or {other}" if one in SEVERITIES else ""
    return ""


def _cell(text: str) -> str:
    return re.sub(r"\.{3,}", "...", " ".join(text.split())).replace("|", "\\|")


def _assigned(function: ast.FunctionDef) -> list[ast.Assign]:
    found = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
    return sorted(found, key=lambda each: each.lineno)


def _names(node: ast.Assign) -> set[str]:
    return {each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)}


def _assignments(function: ast.FunctionDef, before: int) -> dict[str, ast.expr]:
    """Return the latest value of each variable above a line."""
    found: dict[str, ast.expr] = {}
    for node in _assigned(function):
        if node.lineno >= before:
            continue
        match node.targets[0], node.value:
            case ast.Tuple(elts=names), ast.Tuple(elts=values):
                pairs = list(zip(names, values, strict=True))
            case ast.Tuple(elts=names), value:
                pairs = [(each, value) for each in names]
            case name, value:
                pairs = [(name, value)]
        found |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
    return found


def checks_page() -> str:
    """Return the page of the system checks, from the code that reports them."""
    rows = {
        row
        for package in ("leasing", "tasks")
        for path in sorted((ROOT / package).rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and (row := _check_of(call, function))
    }
    head = """# Ids of system checks

`manage.py check` reports these; those from 101 on by `manage.py check --deploy` alone. To accept
one, add its id to `SILENCED_SYSTEM_CHECKS`. `...` stands for a part that varies.

| id | message | what to do |
|---|---|---|
"""
    return head + "".join(f"| `{code}` | {text} | {hint} |\n" for code, text, hint in sorted(rows))


def _check_of(call: ast.Call, function: ast.FunctionDef) -> tuple[str, str, str] | None:
    """Return id, message and hint of a ``call`` that makes a message of a system check. A message
    that is made elsewhere is described by the docstring of the ``function`` around it."""
    given = {each.arg: each.value for each in call.keywords}
    code = given.get("id")
    if not isinstance(code, ast.Constant) or not re.fullmatch(CHECK, str(code.value)):
        return None
    texts = _assignments(function, call.lineno)
    message = _text(call.args[0], texts) if call.args else ""
    purpose = " ".join((ast.get_docstring(function) or "").split())
    return str(code.value), message or purpose, _text(given.get("hint"), texts)


def _text(node: ast.expr | None, texts: dict[str, ast.expr]) -> str:
    """Return a message with its parts that vary as `...`."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("|", "\\|")
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, texts) for part in parts)
        case ast.FormattedValue(value=ast.Name() as name):
            return _text(name, texts) or "..."
        case ast.FormattedValue():
            return "..."
        case ast.BinOp(left=left, right=right):
            return _text(left, texts) + _text(right, texts)
        case ast.Tuple(elts=[first, *_]):
            return _text(first, texts)
        case ast.Call(func=ast.Name(id="Sentence"), args=[_, *parts]):
            return "".join(_text(part, texts) or "..." for part in parts)
        case ast.Starred(value=ast.Name(id=name)) if isinstance(texts.get(name), ast.Tuple):
            return "".join(_text(part, texts) or "..." for part in texts[name].elts)
        case ast.Name(id=name) if name in texts:
            # Without itself, by which it may have been extended.
            return _text(texts[name], {each: texts[each] for each in texts if each != name})
        case _:
            return ""
