"""A task's data and output: what may be stored, and what its handler takes.

The parameters of a handler are read once, when it is registered, and compared with the data of each
task. ``inspect.Signature.bind`` takes many times as long.

A handler is called as ``function(ctx, **data)``. A decorator may pass on other arguments than it
was given. So a handler with a decorator is judged by the parameters of the wrapper, unless the
wrapper is known to pass on what it was given.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any

from leasing.runtime.terminal import closest
from leasing.validation import values
from leasing.validation.names import fields_of
from leasing.validation.values import MAX_DEPTH
from tasks.exceptions import InvalidArguments, InvalidOutput, NotSerializable

#: The name in errors of the value that a handler returns: no other attempt would make it better.
OUTPUT = "output"
#: In each reason why a handler cannot be called.
MISMATCH = " does not take this data: "
#: The sentence that a worker adds to it when it gives the task back.
OTHER_RELEASE = "Another release may have enqueued it, as during a deploy."

POSITIONAL_ONLY, ANY_POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL
EITHER, NAMED, ANY_NAMED = (
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.KEYWORD_ONLY,
    Parameter.VAR_KEYWORD,
)


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


# The parameters of a handler


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters that take a task's data."""

    #: The function's name with its parameters, for errors.
    text: str
    #: The parameter that gets the context, if data could be given its name.
    context: str | None = None
    accepted: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    #: True if there is a ``**data``.
    takes_any: bool = False
    #: The values of the parameters that are not required.
    defaults: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Return the parameters of ``function``.

        Raises TypeError if it can be no handler: it takes no context, takes data by position only,
        or is a generator function.
        """
        function = _passed_to(function)
        name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{name} cannot be a handler: it is a generator function, and calling it runs "
                "nothing. Return the result; report what is done with ctx.progress()."
            )
        try:
            signature = inspect.signature(function, follow_wrapped=False)
        except ValueError:  # code in C that has none
            return cls(name, takes_any=True)
        _check(name, signature)
        first, *others = signature.parameters.values()
        by_name = [each for each in others if each.kind in (EITHER, NAMED)]
        return cls(
            f"{name}({_listed(signature)})",
            first.name if first.kind is EITHER else None,
            frozenset(each.name for each in by_name),
            frozenset(each.name for each in by_name if _is_required(each)),
            any(each.kind is ANY_NAMED for each in others),
            {each.name: each.default for each in by_name if not _is_required(each)},
        )

    def template_defaults(self, what: str, template: str) -> dict[str, Any]:
        """Return the values of the fields of ``template``, called ``what``, for data that lacks
        them: the defaults of the parameters, as data has them.

        Raises TypeError if it has a field that no data can have, or whose default is not JSON.
        """
        fields = set(fields_of(template))
        unknown = {
            name
            for name in fields
            if not (name in self.accepted or self.takes_any and name.isidentifier())
        }
        if unknown:
            listed = ", ".join(f"{{{each}}}" for each in sorted(unknown))
            raise TypeError(
                f"The {what} {template!r} uses {listed}, but {self.text} takes no such data."
            )
        known = {
            name: values.with_strings(self.defaults[name]) for name in fields & self.defaults.keys()
        }
        for name, value in known.items():
            try:
                values.check_json(value, f"default of {name!r}")
            except ValueError as error:
                raise TypeError(f"The {what} {template!r} uses {{{name}}}: {error}") from error
        return known

    def mismatch(self, data: Mapping[str, Any], *, is_partial: bool = False) -> str:
        """Return the reason why the handler cannot be called with ``data``, or with data that has
        these items and others if ``is_partial``; empty if it can."""
        names = data.keys()
        required = frozenset() if is_partial else self.required
        if (
            required <= names
            and (self.takes_any or names <= self.accepted)
            and self.context not in names
        ):
            return ""
        return f"{self.text}{MISMATCH}{'; '.join(self._reasons(required, data))}."

    def _reasons(self, required: frozenset[str], data: Mapping[str, Any]) -> list[str]:
        missing = [name for name in self._in_order(required) if name not in data]
        reasons = [f"{name!r} is missing" for name in missing]
        for name in data:
            if name == self.context:
                reasons.append(f"{name!r} is its context")
            elif not self.takes_any and name not in self.accepted:
                meant = closest(name, self._in_order(self.accepted - data.keys()))
                reasons.append(
                    f"{name!r} is unknown" + (f" (did you mean {meant!r}?)" if meant else "")
                )
        return reasons

    def _in_order(self, names: frozenset[str]) -> list[str]:
        return sorted(names, key=self.text.find)


def _passed_to(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that gets what ``function`` is called with: that within ``transaction.atomic``
    and other context managers which serve as decorators."""
    while (
        getattr(getattr(function, "__code__", None), "co_filename", "") == contextlib.__file__
        and (within := getattr(function, "__wrapped__", None)) is not None
    ):
        function = within
    return function


def _check(name: str, signature: Signature) -> None:
    listed, parameters = _listed(signature), [*signature.parameters.values()]
    if not parameters or not _takes_context(parameters[0]):
        # A bound task of Celery has `self` where its context belongs.
        first, _, rest = listed.partition(", ")
        others = rest if first == "self" and "." not in name else listed
        should = ", ".join(filter(None, ["ctx", others]))
        written = "" if "ctx" in signature.parameters else f": {name.rpartition('.')[2]}({should})"
        raise TypeError(
            f"{name}({listed}) cannot be a handler: its first parameter must be the context"
            f"{written}."
        )
    for each in parameters[1:]:
        if each.kind is POSITIONAL_ONLY and _is_required(each):
            raise TypeError(
                f"{name}({listed}) cannot be a handler: data is passed by name, and {each.name!r} "
                "is positional only."
            )


def _takes_context(first: Parameter) -> bool:
    if first.kind is ANY_POSITIONAL:
        return True
    told = f"{first.name} {first.annotation}".lower()
    named = first.name.startswith("_") or "ctx" in told or "context" in told
    return named and first.kind in (POSITIONAL_ONLY, EITHER)


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _listed(signature: Signature) -> str:
    """The parameters as the code has them, without their types."""
    bare = [
        each.replace(
            annotation=Parameter.empty,
            default=Parameter.empty if _is_required(each) else ...,
        )
        for each in signature.parameters.values()
    ]
    listed = str(signature.replace(parameters=bare, return_annotation=Signature.empty))
    return listed[1:-1].replace("=Ellipsis", "=...")
