"""Pickling and copying of errors."""

from __future__ import annotations

from typing import Any


def reduced(error: BaseException) -> Any:
    """The ``__reduce__`` of errors: made again without ``__init__``, whose arguments are not always
    those that ``args`` has."""
    kind = type(error)
    # OSError leaves its args to __init__ where a class has its own: they are set once more.
    return kind.__new__, (kind, *error.args), {"args": error.args, **vars(error)}
