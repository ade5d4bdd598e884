"""Check what may be stored as a task's data and output."""

from __future__ import annotations

from typing import Any

from leasing.validation import values
from leasing.validation.values import MAX_DEPTH
from tasks.exceptions import InvalidArguments, InvalidOutput, NotSerializable
from tasks.parameters import Parameters

#: The name in errors of the value that a handler returns: no other attempt would make it better.
OUTPUT = "output"


def check_json(value: Any, what: str) -> Any:
    """Return ``value`` if it is JSON that every supported database stores and gives back.

    Raises NotSerializable, InvalidOutput if ``what`` is OUTPUT, for other types, NaN and
    infinities, NUL characters, lone surrogates, and nesting or numbers that the parser refuses.
    """
    dumped_json(value, what)
    return value


def dumped_json(value: Any, what: str, max_depth: int = MAX_DEPTH) -> str:
    """The JSON text of ``value``, as ``jsonb`` takes it: dumping is the check, and need not be
    done twice. Raises NotSerializable as ``check_json`` does."""
    try:
        return values.dumped_json(value, what, max_depth)
    except ValueError as error:
        kind = InvalidOutput if what == OUTPUT else NotSerializable
        raise kind(str(error)) from error


def check_data(data: Any, parameters: Parameters | None = None) -> dict[str, Any]:
    """Return ``data`` as the keyword arguments of a handler; None is none. Dates, times, durations,
    decimal numbers and UUIDs are returned as strings, which is what a handler gets.

    Raises NotSerializable unless it is a JSON object then, and InvalidArguments unless a handler
    with these ``parameters`` can be called with it.
    """
    return dumped_data(data, parameters)[0]


def dumped_data(data: Any, parameters: Parameters | None = None) -> tuple[dict[str, Any], str]:
    """Return ``data`` as ``check_data`` does, and its JSON text."""
    arguments = as_arguments(data, parameters)
    try:
        return arguments, values.dumped_json(arguments, "data")
    except ValueError:  # most data is JSON: the rest may take its time
        arguments = _with_strings(arguments)
    return arguments, dumped_json(arguments, "data")


def as_arguments(data: Any, parameters: Parameters | None = None) -> dict[str, Any]:
    """Return ``data`` as ``check_data`` does, judged by its names alone."""
    if data is None:
        data = {}
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                break
        else:
            if parameters is not None and (reason := parameters.mismatch(data)):
                raise InvalidArguments(reason)
            return data
    raise NotSerializable("The data of a task must be a JSON object.")


def dumped_many(many: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The data of ``many`` as ``check_data`` returns each, and the JSON text of the list. Raises
    NotSerializable if any of them is not to be stored."""
    try:
        return many, values.dumped_json(many, "data", MAX_DEPTH + 1)
    except ValueError:
        many = _with_strings(many)
    return many, dumped_json(many, "data", MAX_DEPTH + 1)


def _with_strings(value: Any) -> Any:
    """Return ``value``, which is no JSON, with strings for what can be one."""
    try:
        return values.with_strings(value)
    except RecursionError:
        return value


def is_same_json(stored: Any, value: Any) -> bool:
    """Return True if a database that was given ``value`` may return ``stored``: lists for tuples,
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
