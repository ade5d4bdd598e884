"""Judge values from outside: JSON, keys and moments that every supported database stores and
returns unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time
from itertools import chain
from typing import Any

from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

#: The deepest nesting of objects and lists. Each parser on the way has a limit of its own, some of
#: them lower when read than when written; this one is below them all.
MAX_DEPTH = 200


#: Not escaped: a lone surrogate shows when the text is encoded, and not before.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


_CONTAINERS = (dict, list, tuple)


class Encoder(DjangoJSONEncoder):
    """Encodes different values differently; Django's encoder cuts times to milliseconds."""

    def default(self, value: Any) -> Any:
        if isinstance(value, datetime | time):
            return value.isoformat()
        return super().default(value)


_encoder = Encoder()


class NotJSON(ValueError):
    """A value is not JSON. The part that is not is looked for when someone reads the error.

    Args:
        what: The name of the value in the message.
        value: The value, of any type.
        error: The error of the encoder, for a fault that is not found.
    """

    def __init__(self, what: str, value: Any, error: Exception) -> None:
        super().__init__(what, value, error)

    def __str__(self) -> str:
        what, value, error = self.args
        return f"The {what} is not JSON: {_first(value, _fault) or error}."


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
    """Return the JSON text of a value, for a statement that stores it. Errors are those of
    ``check_json``.

    Args:
        value: The value, of any type.
        what: The name of the value in errors.
        max_depth: The number of levels to which it may be nested.
    """
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJSON(what, value, error) from error
    # Looked into only where the text gives reason to: payloads may be large.
    if (
        len(text) > max_depth
        and text.count("{") + text.count("[") > max_depth
        and _is_deeper(value, max_depth)
    ):
        raise ValueError(f"The {what} is nested more than {min(max_depth, MAX_DEPTH)} levels deep.")
    if "\\u0000" in text and (where := _first(value, _nul)):
        raise ValueError(f"The {what} contains a NUL character: {where}.")
    return text


def _first(value: Any, fault: Callable[[Any], str]) -> str:
    """A clause about the first part of ``value`` for which ``fault`` returns a predicate."""
    for path, part, is_key in _parts(value, "", MAX_DEPTH):
        if predicate := fault(part):
            where = f"the value at {path}" if path else "it"
            if is_key:
                where = f"a key at {path}" if path else "a key"
            return f"{where} {predicate}"
    return ""


def _parts(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any, bool]]:
    """Each key and each value without parts in ``value``, with its path, and if it is a key."""
    if isinstance(value, _CONTAINERS):
        if not depth:
            return
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                yield path, key, True
            yield from _parts(item, f"{path}[{key!r}]", depth - 1)
    else:
        yield path, value, False


def _fault(part: Any) -> str:
    if isinstance(part, str):
        try:
            part.encode()
        except UnicodeEncodeError:
            return "has a lone surrogate"
        return ""
    if isinstance(part, float):
        return "" if math.isfinite(part) else f"is {part}"
    return "" if part is None or isinstance(part, int) else f"is of the type {type(part).__name__}"


def _nul(part: Any) -> str:
    return "has it" if isinstance(part, str) and "\0" in part else ""


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if ``value``, an object or a list, is nested more than ``depth`` deep."""
    level = [value]
    for _ in range(depth):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for part in chain.from_iterable(inner) if isinstance(part, _CONTAINERS)]
        if not level:
            return False
    return True


def key_of(model: type[Model], text: Any) -> Any:
    """The key of a row of ``model`` that ``text`` writes.

    Raises ValueError if no row can have it: it is of another kind, out of the database's range,
    or has a NUL, which PostgreSQL stores in no text.
    """
    column: Any = model._meta.pk
    while column.remote_field:  # the key of a parent is the child's
        column = column.target_field
    try:
        key = column.to_python(text)
        column.run_validators(key)
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{model.__name__} has no such key.") from error
    if key is None or isinstance(key, str) and "\0" in key:
        raise ValueError(f"{model.__name__} has no such key.")
    return key


def check_moment(value: datetime, what: str) -> datetime:
    """Return ``value`` in UTC: PostgreSQL takes no offset of 16 hours or more, Python takes up to
    a day. ``what`` names it in the error.

    Raises ValueError if it has no time zone, or lies so near to an end of the calendar that
    another zone's year may be none.
    """
    if value.utcoffset() is None:
        raise ValueError(f"{what} must have a time zone.")
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not 2 <= moment.year <= 9998:
        raise ValueError(f"{what} must lie in the years 2 to 9998.")
    return moment
