"""Events: records of the log that say in fields what their line says in words.

The tables of events are ``leasing.runtime.event_lines`` and ``tasks.log``. Each record names its
``event`` and its subject: ``resource``, ``holder``, ``fencing_token``, ``task_id``, ``queue``,
``attempt`` and so on; ``leasing.logs`` writes them as JSON, and any other formatter finds them on
the record. No payload is among them, and no grant: it proves a term.

Errors, reasons and names are other people's text. Whatever could begin a line of its own, or steer
a terminal, is escaped here, so that no formatter can be made to forge a line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from leasing.runtime.labels import label
from leasing.runtime.terminal import plain

#: Texts of a line for fields that are empty.
UNKNOWN: Final = {
    "holder": "somebody",
    "actor": "an operator",
    "reason": "no reason given",
}

#: Keywords of a logging call that are no fields.
_OF_LOGGING = ("exc_info", "stack_info")


def _no_fields(row: Any) -> dict[str, Any]:
    return {}


class Event:
    """A kind of record, a row of a table of events. Its name is that of the attribute:
    ``task_lost`` is ``task.lost``. A call writes one record, with its fields as keywords; a field
    that is None or empty is left out. With the level off a call costs one comparison.

    Args:
        logger: the name of the logger
        level: unless a call gives another
        message: the line, a template of the fields: ``"Claim failed: %(error)s"``
        about: returns the fields of the row that is the first argument of a call
    """

    __slots__ = ("about", "level", "logger", "message", "name")

    def __init__(
        self,
        logger: str,
        level: int,
        message: str,
        about: Callable[[Any], dict[str, Any]] = _no_fields,
    ) -> None:
        self.logger = logging.getLogger(logger)
        self.level = level
        self.message = message
        self.about = about
        self.name = ""

    def __set_name__(self, table: type, name: str) -> None:
        self.name = name.replace("_", ".", 1)

    def __call__(
        self,
        row: Any = None,
        /,
        *,
        level: int | None = None,
        exc_info: BaseException | bool | None = None,
        **details: Any,
    ) -> None:
        level = self.level if level is None else level
        if not self.logger.isEnabledFor(level):
            return
        given = self.about(row) | details
        if "resource" in given:
            given["resource"] = label(given["resource"])
        said = fields(given)
        words = dict.fromkeys(given, "unknown") | UNKNOWN | said
        extra = {"event": self.name} | said
        # The caller of this method is whose line it is.
        self.logger.log(level, self.message, words, extra=extra, exc_info=exc_info, stacklevel=2)


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
