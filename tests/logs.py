"""The log as tests see it."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture, **fields: object) -> list[str]:
    """Return the names of the events that were logged with these ``fields``, in their order."""
    return [
        record.event
        for record in caplog.records
        if hasattr(record, "event")
        and all(getattr(record, name, None) == value for name, value in fields.items())
    ]
