"""Pages by key: 50 rows, newest first, a cursor to either side, no OFFSET and no total.

A page is found by where it begins, so rows that come meanwhile neither repeat a row nor hide
one, and the thousandth page costs what the first costs.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db import models

PAGE_SIZE = 50
COUNT_CAP = 10_000

Row = TypeVar("Row", bound=models.Model)


class InvalidCursor(ValueError):
    """The cursor is not one of ours."""


@dataclass(frozen=True)
class Capped:
    """A count that stopped counting at ``cap``."""

    value: int
    cap: int = COUNT_CAP

    def __str__(self) -> str:
        return f"{self.cap:,}+" if self.value > self.cap else f"{self.value:,}"

    def __bool__(self) -> bool:
        return self.value > 0


def capped_count(rows: models.QuerySet[Any], cap: int = COUNT_CAP) -> Capped:
    """How many ``rows`` there are, looking at ``cap`` + 1 of them at most."""
    return Capped(rows.order_by().values("pk")[: cap + 1].count(), cap)


@dataclass(frozen=True)
class Cursor:
    """The side of a row on which a page lies: ``older`` or ``newer`` than ``key``."""

    model: str
    side: str
    key: Any

    def encode(self) -> str:
        """The cursor as it stands in an address."""
        text = json.dumps([self.model, self.side, str(self.key)], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read what ``encode`` wrote. Raises InvalidCursor."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            given = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (UnicodeError, binascii.Error, ValueError, RecursionError) as error:
            raise InvalidCursor("not a cursor") from error
        if not (isinstance(given, list) and len(given) == 3):
            raise InvalidCursor("not a cursor")
        model, side, key = given
        if not all(isinstance(part, str) for part in given) or side not in ("older", "newer"):
            raise InvalidCursor("not a cursor")
        return cls(model, side, key)


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Some rows, newest first, and the cursors of the pages on either side."""

    rows: Sequence[Row]
    newer: str = ""
    older: str = ""
    #: Whether a cursor led here: the page is not the first.
    moved: bool = False


def page_of(rows: models.QuerySet[Row], cursor: Cursor | None, size: int = PAGE_SIZE) -> Page[Row]:
    """The page of ``rows`` at ``cursor``, or the newest; ordered by key, greatest first.

    A cursor of another model leaves ``rows`` at its newest page, so that one address can hold
    the place in one of several lists. Raises InvalidCursor when its key fits no row.
    """
    label = rows.model._meta.label_lower
    if cursor is None or cursor.model != label:
        found = list(rows.order_by("-pk")[: size + 1])
        return _page(label, found[:size], newer=False, older=len(found) > size, moved=False)
    key = _key(rows.model, cursor.key)
    if cursor.side == "older":
        found = list(rows.filter(pk__lt=key).order_by("-pk")[: size + 1])
        return _page(label, found[:size], newer=True, older=len(found) > size, moved=True)
    found = list(rows.filter(pk__gt=key).order_by("pk")[: size + 1])
    shown = found[:size][::-1]
    return _page(label, shown, newer=len(found) > size, older=True, moved=True)


def _page(label: str, rows: list[Row], *, newer: bool, older: bool, moved: bool) -> Page[Row]:
    if not rows:
        return Page(rows, moved=moved)
    return Page(
        rows,
        newer=Cursor(label, "newer", rows[0].pk).encode() if newer else "",
        older=Cursor(label, "older", rows[-1].pk).encode() if older else "",
        moved=moved,
    )


def _key(model: type[models.Model], text: str) -> Any:
    try:
        key = model._meta.pk.to_python(text)
        model._meta.pk.run_validators(key)
    except (ValidationError, ValueError, OverflowError) as error:
        raise InvalidCursor("not a cursor") from error
    return key
