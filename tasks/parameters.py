"""The parameters of a handler: read once, when it is registered, and compared with the data of each
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
from leasing.validation.names import fields_of
from leasing.validation.values import check_json, with_strings

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
        values = {name: with_strings(self.defaults[name]) for name in fields & self.defaults.keys()}
        for name, value in values.items():
            try:
                check_json(value, f"default of {name!r}")
            except ValueError as error:
                raise TypeError(f"The {what} {template!r} uses {{{name}}}: {error}") from error
        return values

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
