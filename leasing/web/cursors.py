"""Orders of lists, and cursors in their addresses."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from django.db.models import Q


@dataclass(frozen=True)
class Order:
    """The order of a list: by ``column``, a moment that is never null in these rows, and by key
    where that is the same; by key alone without one. There should be an index."""

    column: str = ""
    descending: bool = True
    #: Conditions of which each row meets one. Those that meet it are looked up apart, for it is
    #: them that an index has in this order, or they are few; none: all rows together.
    parts: tuple[Q, ...] = ()

    @property
    def by(self) -> list[str]:
        """For ``order_by``."""
        return self._by(self.descending)

    @property
    def reversed(self) -> list[str]:
        return self._by(not self.descending)

    @property
    def words(self) -> tuple[str, str, str]:
        """Return the labels of the links to the first page and to both sides."""
        return ("Newest", "Newer", "Older") if self.descending else ("First", "Earlier", "Later")

    def _by(self, descending: bool) -> list[str]:
        sign = "-" if descending else ""
        return [f"{sign}{name}" for name in (self.column, "pk") if name]


NEWEST_FIRST = Order()


class InvalidCursor(ValueError):
    """The cursor was not made here, or is of a list in another order."""


@dataclass(frozen=True)
class Cursor:
    """The side of a row on which a page lies: ``older`` (further on in the list) or ``newer``
    than ``key``, and in a list that is sorted by a moment than that ``column`` at ``moment``."""

    model: str
    side: str
    key: Any
    column: str = ""
    moment: str = ""

    def encode(self) -> str:
        """The cursor as it stands in an address."""
        parts = [self.model, self.side, str(self.key)]
        if self.column:
            parts += [self.column, self.moment]
        text = json.dumps(parts, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read what ``encode`` wrote. Raises InvalidCursor."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            given = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (UnicodeError, binascii.Error, ValueError, RecursionError) as error:
            raise InvalidCursor("not a cursor") from error
        if not (isinstance(given, list) and len(given) in (3, 5)):
            raise InvalidCursor("not a cursor")
        if not all(isinstance(part, str) for part in given) or given[1] not in ("older", "newer"):
            raise InvalidCursor("not a cursor")
        return cls(*given)
