"""Print for commands: tables, JSON, and text of strangers without control characters."""

from __future__ import annotations

import json
from collections.abc import Iterable


def plain(text: str) -> str:
    """``text`` in a line, without what could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def as_json(value: object) -> str:
    """``value`` as indented JSON, its moments in ISO format."""
    from django.core.serializers.json import DjangoJSONEncoder  # clients may have no Django

    return json.dumps(value, indent=2, cls=DjangoJSONEncoder)


def as_table(rows: Iterable[tuple[str, ...]]) -> str:
    """``rows`` of plain text in lines, their columns aligned."""
    rows = [tuple(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
