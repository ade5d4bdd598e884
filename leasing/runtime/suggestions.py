"""Names that were probably meant, for errors about names that are unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
