"""What every supported database stores as JSON, and gives back as it was."""

from __future__ import annotations

import json
from typing import Any

#: How many objects and lists may stand one inside the other. Each parser on the way has a limit
#: of its own, some of them lower when read than when written; this one is below them all.
MAX_DEPTH = 200


#: Not escaped: a lone surrogate shows when the text is encoded, and not before.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def check_json(value: Any, what: str) -> Any:
    """Return ``value`` if it is JSON that every supported database stores and gives back.
    ``what`` names it in the error.

    Raises ValueError for other types, NaN and infinities, NUL characters, lone surrogates, and
    what is nested more than MAX_DEPTH deep.
    """
    dumped_json(value, what)
    return value


def dumped_json(value: Any, what: str) -> str:
    """The JSON text of ``value``, for a statement that stores it. Errors as of ``check_json``."""
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The {what} is not JSON: {error}") from error
    # Looked into only where the text gives reason to: payloads may be large.
    if len(text) > MAX_DEPTH and text.count("{") + text.count("[") > MAX_DEPTH and _is_deep(value):
        raise ValueError(f"The {what} is nested more than {MAX_DEPTH} deep.")
    if "\\u0000" in text and _has_nul(value):
        raise ValueError(f"The {what} contains a NUL character.")
    return text


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    return any(isinstance(innermost, dict | list | tuple) for innermost in level)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_has_nul(item) for item in value)
    return False
