"""Format strings over the arguments of a call, such as ``"report:{pk}"``."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Iterator


def fields_of(template: str) -> Iterator[str]:
    """The names of the arguments that ``template`` is formatted with; empty or a number for those
    that have only a position. Raises ValueError if it is not a format string."""
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is not None:
            yield re.split(r"[.\[]", field, maxsplit=1)[0]
            yield from fields_of(spec or "")


def unknown_fields(template: str, signature: inspect.Signature) -> list[str]:
    """The fields of ``template`` that no call of a function with ``signature`` has a value for.
    Raises ValueError if it is not a format string."""
    parameters = signature.parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    known = {each.name for each in parameters}
    return sorted(
        {
            field
            for field in fields_of(template)
            if not (field in known or takes_any and field.isidentifier())
        }
    )
