"""What every supported database stores as JSON, and gives back as it was."""

from __future__ import annotations

import json
from typing import Any

#: How many objects and lists may stand one inside the other. Each parser on the way has a limit
#: of its own, some of them lower when read than when written; this one is below them all.
MAX_DEPTH = 200


def check_json(value: Any, what: str) -> Any:
    """Return ``value`` if it is JSON that every supported database stores and gives back.
    ``what`` names it in the error.

    Raises ValueError for other types, NaN and infinities, NUL characters, lone surrogates, and
    what is nested more than MAX_DEPTH deep.
    """
    try:
        # Not escaped: a lone surrogate shows when the text is encoded, and not before.
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The {what} is not JSON: {error}") from error
    _check_inside(value, what, MAX_DEPTH)
    return value


def _check_inside(value: Any, what: str, depth: int) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"The {what} contains a NUL character.")
        return
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        if not depth:
            raise ValueError(f"The {what} is nested more than {MAX_DEPTH} deep.")
        for item in value:
            _check_inside(item, what, depth - 1)
