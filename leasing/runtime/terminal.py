"""Text for terminals, logs and errors: tables, JSON, short names, and names that were meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Final


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


#: The prefix of the resources of tasks in the API.
TASKS: Final = "/api/tasks/"


def label(resource: str) -> str:
    """Return ``task:17`` for the resource of a task, any other as it is."""
    return f"task:{resource.removeprefix(TASKS)}" if resource.startswith(TASKS) else resource


#: Names that are listed when none is close.
LISTED = 10


def suggestion(name: object, known: Iterable[str], listed_at_most: int = LISTED) -> str:
    """Return a sentence about the name that was probably meant. If none is close, it lists those
    that are known.

    Args:
        name: The name that is not known.
        known: The names that are.
        listed_at_most: The number of names that are listed, at most.
    """
    names = list(known)
    if close := closest(name, names):
        return f"Did you mean {close!r}?"
    more = len(names) - listed_at_most
    listed = ", ".join(names[:listed_at_most]) + (f" and {more} more" if more > 0 else "")
    return f"Known: {listed or 'none'}."


def closest(name: object, known: Iterable[str]) -> str:
    """Return the one of ``known`` that is spelled most like ``name``, in any case; empty if none
    is close."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return by_lower[close[0]] if close else ""
