"""Loggers whose records say in fields what their line says in words.

Each record names its ``event`` and what it is about: ``resource``, ``holder``, ``fencing_token``,
``task_id``, ``queue``, ``attempt`` and so on; ``leasing.logs`` writes them as JSON, and any other
formatter finds them on the record. No payload is among them, and no grant: it proves a term.

What is logged comes from strangers: errors, reasons, names. Whatever could begin a line of its
own, or steer a terminal, is escaped here, so that no formatter can be made to forge a line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from leasing.runtime.terminal import plain

#: Keywords of a logging call that are no fields.
_OF_LOGGING = ("exc_info", "stack_info")


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that takes fields as keywords: ``log.info("%s left", name, event="left")``.

    A field that is None or empty is left out. With the level off nothing is made of either.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **named: Any) -> None:
        if not self.logger.isEnabledFor(level):
            return
        options = {name: named.pop(name) for name in _OF_LOGGING if name in named}
        # The caller of this method is whose line it is.
        options["stacklevel"] = named.pop("stacklevel", 1) + 1
        self.logger.log(level, msg, *map(_harmless, args), extra=fields(named), **options)


def get_logger(name: str) -> EventLogger:
    """The logger called ``name``, for records with fields."""
    return EventLogger(name)


def fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``given`` that say something, fit for a record."""
    return {
        name: plain(value)
        if type(value) is str
        else (value if isinstance(value, int | float) else plain(str(value)))
        for name, value in given.items()
        if value is not None and value != ""
    }


class _Plain:
    """What is formatted as ``value`` is, without what could forge a line."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return plain(str(self._value))

    def __repr__(self) -> str:
        return plain(repr(self._value))


def _harmless(value: object) -> object:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, dict):  # the values of a "%(name)s"
        return {name: _harmless(each) for name, each in value.items()}
    return _Plain(value)
