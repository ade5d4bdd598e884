"""Fingerprints of what pages show, made of what was read and not of what would be rendered.

Two things change a page without a row being written, and are in its fingerprint as well: whether a
moment has passed, and the state of a lease. Times that tick are not: the browser counts them on. A
field of a dataclass that tells one is declared with ``compare=False``. Where one attribute tells
all, its name is ``fingerprint_field``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from types import NoneType
from uuid import UUID

from django.db.models import Model, QuerySet
from django.forms import BaseForm

from leasing.models import Leasable
from leasing.web.badges import badge_of_lease

#: Of rows: the database's clock when they were read, which is new each time.
NOW = "now"

#: Columns that have to be loaded of a row to derive its state: a fingerprint runs no query.
LEASE_COLUMNS = {"expires_at", "released_at", "ttl", "grants", "renewals"}
PROGRESS_COLUMNS = {"status", "progress_timeout", "progressed_at"}

#: Values of which ``repr`` tells all.
PLAIN = frozenset({NoneType, bool, int, float, str, timedelta, UUID})


def fingerprint(value: object, now: datetime) -> str:
    """Return a text that is the same while what ``value`` shows at ``now`` is."""
    return Digest(value, now).text


class Digest:
    """The fingerprint of what ``value`` shows at ``now``."""

    def __init__(self, value: object, now: datetime) -> None:
        self._now = now
        #: The first moment after ``now`` that ``value`` has: what it shows may change then.
        self.changes_at: datetime | None = None
        self._hash = blake2b(digest_size=12)
        #: Rows that were fed, by their identity: a page may have one several times.
        self._rows: dict[int, int] = {}
        self.feed(value)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def feed(self, value: object) -> None:
        if isinstance(value, datetime):
            self._add(f"{value.isoformat()} {self._is_past(value)}")
        elif isinstance(value, Model):
            self._feed_row(value)
        elif isinstance(value, Mapping):
            self._add(f"{{{len(value)}")
            for key, item in value.items():
                self._add(str(key))
                self.feed(item)
        elif isinstance(value, list | tuple | set | frozenset | QuerySet):
            self._feed_all(value)
        elif isinstance(value, BaseForm):
            self._feed_all([dict(value.data), value.errors.get_json_data()])
        elif (name := getattr(value, "fingerprint_field", None)) is not None:
            self._add(getattr(value, name))
        elif is_dataclass(value):
            self._feed_all([getattr(value, each.name) for each in fields(value) if each.compare])
        else:
            self._add(repr(value))

    def _is_past(self, moment: datetime) -> bool:
        if moment <= self._now:
            return True
        if self.changes_at is None or moment < self.changes_at:
            self.changes_at = moment
        return False

    def _add(self, text: str) -> None:
        # With its length before it, so that no two lists of words read the same.
        self._hash.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def _feed_all(self, values: Iterable[object]) -> None:
        listed = list(values)
        self._add(f"[{len(listed)}")
        for value in listed:
            self.feed(value)

    def _feed_row(self, row: Model) -> None:
        number = self._rows.setdefault(id(row), len(self._rows))
        if number < len(self._rows) - 1:
            self._add(f"row {number}")
            return
        # Most of what a page shows are rows, and most of a row are plain values: those make one
        # text.
        shown: list[object] = [row._meta.label]
        for key, item in vars(row).items():
            kind = type(item)
            if kind in PLAIN:
                shown += key, item
            elif key in ("_state", NOW):
                continue
            elif kind is datetime:
                shown += key, item.isoformat(), self._is_past(item)
            else:
                self._add(key)
                self.feed(item)
        if isinstance(row, Leasable) and vars(row).keys() >= LEASE_COLUMNS:
            shown.append(badge_of_lease(row, self._now).word)
        if hasattr(row, "stalled_for") and vars(row).keys() >= PROGRESS_COLUMNS:
            shown.append(row.stalled_for(self._now) is not None)
        self._add(repr(shown))
