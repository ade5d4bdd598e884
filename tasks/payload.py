"""What may be stored as a task's data and output."""

from __future__ import annotations

import json
from typing import Any

from tasks.exceptions import NotSerializable

#: How many objects and lists may stand one inside the other. Each parser on the way has a limit
#: of its own, some of them lower when read than when written; this one is below them all.
MAX_DEPTH = 200


def check_json(value: Any, what: str) -> Any:
    """Return ``value`` if it is JSON that every supported database stores and gives back.

    Raises NotSerializable for other types, NaN and infinities, NUL characters, lone surrogates,
    and nesting or numbers that the parser refuses.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSerializable(f"The {what} is not JSON: {error}") from error
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_deep(value):
        raise NotSerializable(f"The {what} is nested more than {MAX_DEPTH} deep.")
    if "\\u0000" in text and _has_nul(value):
        raise NotSerializable(f"The {what} contains a NUL character.")
    return value


def check_data(data: Any) -> dict[str, Any]:
    """Return ``data`` as the keyword arguments of a handler; None is none.

    Raises NotSerializable unless it is a JSON object.
    """
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise NotSerializable("The data of a task must be a JSON object.")
    checked: dict[str, Any] = check_json(data, "data")
    return checked


def is_same_json(stored: Any, value: Any) -> bool:
    """Whether a database that was given ``value`` may give back ``stored``: lists for tuples,
    and for a number another of the same amount."""
    if isinstance(stored, dict) and isinstance(value, dict):
        return stored.keys() == value.keys() and all(
            is_same_json(item, value[key]) for key, item in stored.items()
        )
    if isinstance(stored, list) and isinstance(value, list | tuple):
        return len(stored) == len(value) and all(map(is_same_json, stored, value))
    if _is_number(stored) and _is_number(value):
        return _is_same_number(stored, value)
    return type(stored) is type(value) and bool(stored == value)


def _is_same_number(stored: float, value: float) -> bool:
    if isinstance(stored, int) and isinstance(value, int):
        return stored == value
    try:  # 1e23 may come back as the whole number 10 ** 23, which Python holds for another
        return float(stored) == float(value)
    except OverflowError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
