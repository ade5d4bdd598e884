"""Judge values that every supported database stores as JSON and returns unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, time
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

#: The deepest nesting of objects and lists. Each parser on the way has a limit of its own, some of
#: them lower when read than when written; this one is below them all.
MAX_DEPTH = 200


#: Not escaped: a lone surrogate shows when the text is encoded, and not before.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class Encoder(DjangoJSONEncoder):
    """Encodes different values differently; Django's encoder cuts times to milliseconds."""

    def default(self, value: Any) -> Any:
        if isinstance(value, datetime | time):
            return value.isoformat()
        return super().default(value)


_encoder = Encoder()


def with_strings(value: Any) -> Any:
    """Return ``value`` with the text that ``Encoder`` writes in place of each moment, date, time,
    duration, decimal number, UUID and lazy string in it. Raises RecursionError."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {name: with_strings(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_strings(item) for item in value]
    try:
        return _encoder.default(value)
    except TypeError:
        return value


def check_json(value: Any, what: str) -> Any:
    """Return ``value`` if it is JSON that every supported database stores and gives back.
    ``what`` names it in the error.

    Raises ValueError for other types, NaN and infinities, NUL characters, lone surrogates, and
    what is nested more than MAX_DEPTH deep.
    """
    dumped_json(value, what)
    return value


def dumped_json(value: Any, what: str, max_depth: int = MAX_DEPTH) -> str:
    """The JSON text of ``value``, for a statement that stores it. Errors as of ``check_json``,
    for nesting more than ``max_depth`` deep."""
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The {what} is not JSON: {error}") from error
    # Looked into only where the text gives reason to: payloads may be large.
    if (
        len(text) > max_depth
        and text.count("{") + text.count("[") > max_depth
        and _is_deeper(value, max_depth)
    ):
        raise ValueError(f"The {what} is nested more than {min(max_depth, MAX_DEPTH)} levels deep.")
    if "\\u0000" in text and _has_nul(value):
        raise ValueError(f"The {what} contains a NUL character.")
    return text


def _is_deeper(value: Any, depth: int) -> bool:
    level = _containers([value])
    for _ in range(depth):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in _containers(outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list | tuple)]


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_has_nul(item) for item in value)
    return False
