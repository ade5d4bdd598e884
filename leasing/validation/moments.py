"""A moment that every supported database stores and every time zone shows."""

from __future__ import annotations

from datetime import UTC, datetime


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
