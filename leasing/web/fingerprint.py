"""Fingerprints of what pages show, made of what was read and not of what would be rendered.

Two things change a page without a row being written, and are in its fingerprint as well: whether a
moment has passed, and how a lease stands. Times that tick are not: the browser counts them on. A
field of a dataclass that tells one is declared with ``compare=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
LEASE_READ = {"expires_at", "released_at", "ttl", "grants", "renewals"}
PROGRESS_READ = {"status", "progress_timeout", "progressed_at"}

#: Values of which ``repr`` tells all.
PLAIN = frozenset({NoneType, bool, int, float, str, timedelta, UUID})

Feed = Callable[[str], None]


def fingerprint(value: object, now: datetime) -> str:
    """Return a text that is the same while what ``value`` shows at ``now`` is."""
    digest = blake2b(digest_size=12)

    def feed(text: str) -> None:
        # With its length before it, so that no two lists of words read the same.
        digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    _feed(value, now, feed)
    return digest.hexdigest()


def _feed(value: object, now: datetime, feed: Feed) -> None:
    if isinstance(value, datetime):
        feed(f"{value.isoformat()} {value <= now}")
    elif isinstance(value, Model):
        _feed_row(value, now, feed)
    elif isinstance(value, Mapping):
        feed(f"{{{len(value)}")
        for key, item in value.items():
            feed(str(key))
            _feed(item, now, feed)
    elif isinstance(value, list | tuple | set | frozenset | QuerySet):
        _feed_all(value, now, feed)
    elif isinstance(value, BaseForm):
        _feed([dict(value.data), value.errors.get_json_data()], now, feed)
    elif is_dataclass(value):
        _feed_all([getattr(value, each.name) for each in fields(value) if each.compare], now, feed)
    else:
        feed(repr(value))


def _feed_all(values: Iterable[object], now: datetime, feed: Feed) -> None:
    listed = list(values)
    feed(f"[{len(listed)}")
    for value in listed:
        _feed(value, now, feed)


def _feed_row(row: Model, now: datetime, feed: Feed) -> None:
    # Most of what a page shows are rows, and most of a row are plain values: those make one text.
    shown: list[object] = [row._meta.label]
    for key, item in vars(row).items():
        kind = type(item)
        if kind in PLAIN:
            shown += key, item
        elif key in ("_state", NOW):
            continue
        elif kind is datetime:
            shown += key, item.isoformat(), item <= now
        else:
            feed(key)
            _feed(item, now, feed)
    if isinstance(row, Leasable) and vars(row).keys() >= LEASE_READ:
        shown.append(badge_of_lease(row, now).word)
    if hasattr(row, "stalled_for") and vars(row).keys() >= PROGRESS_READ:
        shown.append(row.stalled_for(now) is not None)
    feed(repr(shown))
