"""Formatters to name in ``LOGGING``. Both write one record so that it cannot pass for two.

    "formatters": {"json": {"()": "leasing.logs.JSONFormatter"}}

See ``leasing.runtime.event_logger`` for the fields of the records.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Final

from leasing.runtime.terminal import plain
from leasing.web.masking import MASK, is_secret, masked_text

#: Attributes of every record; all others of a record are fields.
_OF_RECORDS: Final = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message")
)
#: A field that its name would give for a secret, and is none.
_NO_SECRETS: Final = frozenset(("fencing_token",))
#: Characters of a field or line that are kept.
LONGEST: Final = 10_000


class JSONFormatter(logging.Formatter):
    """Each record as one line of JSON: ``time`` (UTC, ISO 8601), ``level``, ``logger``,
    ``message``, the record's fields, and ``traceback`` where there is one.

    Fields of any logger are written. What stands under a secret-looking name is masked, so
    are passwords in addresses, and what is no JSON is written as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _OF_RECORDS and name not in said:
                hide = is_secret(name) and name not in _NO_SECRETS
                said[name] = MASK if hide else _writable(value)
        if traceback := _traceback(self, record):
            said["traceback"] = _cut(traceback)
        # All but ASCII is escaped: some readers end lines at more than newlines.
        return json.dumps(said, separators=(",", ":"))


class LineFormatter(logging.Formatter):
    """Lines for people, as ``logging.Formatter`` makes them. What a record says stays in its
    line, and those of a traceback are indented: none of them looks like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {plain(line)}" for line in text.splitlines())


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return masked_text(_cut(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return masked_text(_cut(str(value)))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
