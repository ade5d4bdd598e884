"""Events: records of the log that say in fields what their line says in words.

The tables of events are ``leasing.runtime.event_lines`` and ``tasks.log``. Each record names its
``event`` and its subject: ``resource``, ``holder``, ``fencing_token``, ``task_id``, ``queue``,
``attempt`` and so on; ``leasing.logs`` writes them as JSON, and any other formatter finds them on
the record. No payload is among them, and no grant: it proves a term.

Errors, reasons and names are other people's text. Text that could begin a line of its own, or steer
a terminal, is escaped here, so that no formatter can be made to forge a line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from leasing.runtime.terminal import label, plain

#: Texts of a line for fields that are empty.
UNKNOWN: Final = {
    "holder": "an unknown holder",
    "actor": "an operator",
    "reason": "no reason given",
}


def _no_fields(row: Any) -> dict[str, Any]:
    return {}


class Event:
    """A kind of record, a row of a table of events. Its name is that of the attribute:
    ``task_lost`` is ``task.lost``. A call writes one record, with its fields as keywords; a field
    that is None or empty is left out. With the level off a call costs one comparison.

    Args:
        logger: The name of the logger.
        level: The level, unless a call gives another.
        message: The line, a template of the fields: ``"Claim failed: %(error)s"``.
        about: Returns the fields of the row that is the first argument of a call.
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
        said = _known(given)
        words = dict.fromkeys(given, "unknown") | UNKNOWN | said
        extra = {"event": self.name} | said
        # The caller of this method is whose line it is.
        self.logger.log(level, self.message, words, extra=extra, exc_info=exc_info, stacklevel=2)

    def each(self, rows: Sequence[Any], *, by: str | None = None, **details: Any) -> None:
        """Write the record of each of ``rows``. Of a subscriber of ``leasing.runtime.events``."""
        if self.logger.isEnabledFor(self.level):
            for row in rows:
                self(row, actor=by, **details)


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``given`` that are not empty, fit for a record."""
    return {
        name: value if isinstance(value, int | float) else plain(str(value))
        for name, value in given.items()
        if value is not None and value != ""
    }
