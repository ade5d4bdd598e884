"""What a poll of an open page costs: nothing is rendered while there is nothing new to show.

A view reads what it shows and hands it to ``answer``. The entity tag is made of what was read,
not of what would be rendered, so a poll that knows it already is answered 304 by the queries
alone. Two things change a page without a row being written, and stand in the tag as well:
whether a moment has passed, and how a lease stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from types import NoneType
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import render
from django.utils import timezone

from leasing.models import Leasable
from leasing.web.access import is_live
from leasing.web.badges import lease_sign
from leasing.web.fingerprint import Glance

#: Of the context and of rows: when it was read, which is new each time.
NOW = "now"

#: What has to be loaded of a row to tell how it stands: a tag asks the database for nothing.
LEASE_READ = {"expires_at", "released_at", "ttl", "grants", "renewals"}
PROGRESS_READ = {"status", "progress_timeout", "progressed_at"}

#: Values of which ``repr`` tells all.
PLAIN = frozenset({NoneType, bool, int, float, str, timedelta, UUID})

Feed = Callable[[str], None]


def answer(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    status: int = 200,
    unmarked: Iterable[str] = (),
    late: Callable[[], dict[str, Any]] | None = None,
    shared: Callable[[bool], dict[str, Any]] | None = None,
) -> HttpResponse:
    """Render ``template`` with ``context``; to a poll that has seen the same, 304.

    ``context`` holds all that the template shows, and under ``now`` the database's clock. What
    has a method ``live_marks`` says by what it returns what of it is shown. What stands under
    the names in ``unmarked`` may change without the page being another. What ``late`` returns is
    shown too, and read only when the page is rendered: something in ``context`` must tell that it
    has changed. What ``shared`` returns is shown as well: called with False it may be a little
    old, which is how a poll asks whether there is news; called with True it is as it is now, and
    that is what is rendered.
    """

    def whole(anew: bool) -> dict[str, Any]:
        return context | shared(anew) if shared else context

    def rendered(seen: dict[str, Any]) -> HttpResponse:
        return render(request, template, seen | (late() if late else {}), status=status)

    if not is_live(request):
        return rendered(whole(anew=True))
    # Whatever compresses an answer on its way makes its tag a weak one.
    known = request.headers.get("If-None-Match", "").removeprefix("W/")
    for anew in (False, True) if shared else (True,):
        seen = whole(anew)
        marked = {name: value for name, value in seen.items() if name not in unmarked}
        tag = etag_of(marked, request.user.pk)
        if known == tag and status == 200:
            response: HttpResponse = HttpResponseNotModified()
            break
    else:
        response = rendered(seen)
    response["ETag"] = tag
    return response


def etag_of(context: Mapping[str, Any], *more: object) -> str:
    """A tag that is the same while what ``context`` shows is."""
    digest = blake2b(digest_size=12)
    now = context.get(NOW) or timezone.now()

    def feed(text: str) -> None:
        # With its length before it, so that no two lists of words read the same.
        digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    _feed({**context, NOW: None}, now, feed)
    _feed(more, now, feed)
    return f'"{digest.hexdigest()}"'


def _feed(value: object, now: datetime, feed: Feed) -> None:
    if isinstance(value, datetime):
        feed(f"{value.isoformat()} {value <= now}")
    elif isinstance(value, Glance):
        feed(value.marks(now))
    elif hasattr(value, "live_marks"):
        _feed(value.live_marks(), now, feed)
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
        _feed_all([getattr(value, each.name) for each in fields(value)], now, feed)
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
        shown.append(lease_sign(row, now).word)
    if hasattr(row, "stalled_for") and vars(row).keys() >= PROGRESS_READ:
        shown.append(row.stalled_for(now) is not None)
    feed(repr(shown))
