"""Polls of open pages: read what the page shows, hash it, and answer 304 or render.

A view reads what it shows and hands it to ``answer``. What pages show to everybody alike is read
by ``shared_reading``, so that polls of one address read it once between them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import get_language

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.web import cache
from leasing.web.access import is_live
from leasing.web.cache import shared
from leasing.web.counts import CAPPED_SHARED_FOR, COUNTS_SHARED_FOR
from leasing.web.cursors import Cursor, InvalidCursor
from leasing.web.fingerprint import Digest, fingerprint

#: Reads the context of a page, as of the database's clock.
Read = Callable[[datetime], dict[str, Any]]
Count = Callable[[], dict[str, Any]]


class SharedReading:
    """The part of a page that everybody sees: a context, as it was at ``read_at``.

    Args:
        context: The values that were read, for a template.
        fingerprint: The fingerprint of the context.
        now: The database's clock when it was read.
        read_at: The process's clock then.
        changes_at: The next moment in the context: what it says may no longer be true then.
    """

    def __init__(
        self,
        context: dict[str, Any],
        fingerprint: str,
        now: datetime,
        read_at: float,
        changes_at: datetime | None = None,
    ) -> None:
        self._context: Any = context
        self.fingerprint = fingerprint
        self._changes_at = changes_at
        self._now, self._read_at = now, read_at

    def __getstate__(self) -> dict[str, Any]:
        # Packed apart: a poll that has seen the page needs no more than its fingerprint.
        return vars(self) | {"_context": pickle.dumps(self._context, pickle.HIGHEST_PROTOCOL)}

    @property
    def context(self) -> dict[str, Any]:
        if isinstance(self._context, bytes):
            self._context = pickle.loads(self._context)
        context: dict[str, Any] = self._context
        return context

    @property
    def shared_for(self) -> float:
        """The seconds for which it is shared: until its next moment passes, which changes the
        sentence of a countdown."""
        if self._changes_at is None:
            return cache.SHARED_FOR
        # Not 0, which is no time-out of a cache.
        return min(cache.SHARED_FOR, max(0.001, (self._changes_at - self.now).total_seconds()))

    @property
    def now(self) -> datetime:
        """The database's clock now."""
        return self._now + timedelta(seconds=time.monotonic() - self._read_at)


def shared_reading(
    request: HttpRequest, read: Read, count: Count | None = None, apart: Hashable = None
) -> SharedReading:
    """Return what the page of ``request`` shows to everybody; a poll may get what another poll of
    its address has read a moment ago.

    Args:
        read: Brings the context, except its counts.
        count: Brings the counts. Polls share them for longer, while the rest stays the same.
        apart: A value that differs between users of one address who are not shown the same.
    """
    fresh = not is_live(request)
    # What is read may hold words, with times in them.
    zone = timezone.get_current_timezone_name()
    address = request.get_full_path(), zone, get_language(), apart

    def reading() -> SharedReading:
        read_at, now = time.monotonic(), database_now(leasing_settings.DATABASE)
        context = read(now)
        digest = Digest(context, now)
        seen = digest.text
        if count is not None:
            counts = shared((address, seen), count, fresh=fresh, seconds=_shared_for)
            context, seen = {**context, **counts}, seen + fingerprint(counts, now)
        return SharedReading(context, seen, now, read_at, digest.changes_at)

    return shared(address, reading, fresh=fresh, seconds=lambda found: found.shared_for)


def _shared_for(counts: dict[str, Any]) -> float:
    are_capped = any(tab["count"].is_capped for tab in counts["tabs"])
    return CAPPED_SHARED_FOR if are_capped else COUNTS_SHARED_FOR


def read_list(
    request: HttpRequest,
    form: forms.Form,
    read: Read,
    count: Count | None = None,
    apart: Hashable = None,
) -> SharedReading | None:
    """Return ``shared_reading``; None, with an error in ``form``, where the form or its cursor is
    invalid. The other arguments are those of ``shared_reading``.

    Args:
        form: The form of the address.
    """
    try:
        return shared_reading(request, read, count, apart) if form.is_valid() else None
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        return None


def read_or_first(
    request: HttpRequest,
    form: forms.Form,
    read: Callable[[datetime, Cursor | None], dict[str, Any]],
    apart: Hashable = None,
) -> SharedReading:
    """Return ``shared_reading`` of the page that ``form`` asks for. Where the form or its cursor is
    invalid, it is the first page, and the form has an error.

    Args:
        form: The form of the address, whose field ``at`` is the cursor.
        read: Brings the context of the page at a moment and a cursor; None: of the first page.
        apart: As of ``shared_reading``.
    """
    found = read_list(request, form, lambda now: read(now, form.cleaned_data["at"]), apart=apart)
    if found is None:
        read_at, now = time.monotonic(), database_now(leasing_settings.DATABASE)
        found = SharedReading(read(now, None), "", now, read_at)
    return found


def answer(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    reading: SharedReading | None = None,
    status: int = 200,
    rest: Callable[[], dict[str, Any]] = dict,
) -> HttpResponse:
    """Render ``template``; to a poll that has seen the same, 304.

    Args:
        template: The name of the template.
        context: What the template shows to this user; its ``form`` is that of the address.
        reading: What it shows to everybody; without one ``context`` may tell the ``now`` of what
            was read, by the database's clock.
        status: The status of the answer, unless the form has errors.
        rest: Brings further values, if it is rendered.
    """
    if "form" in context and context["form"].errors:
        status = 400
    if "now" not in context:
        now = reading.now if reading else database_now(leasing_settings.DATABASE)
        context = {"now": now, **context}
    tag = _tag(request, context, reading) if is_live(request) else ""
    # A proxy or middleware that compresses an answer makes its tag a weak one.
    known = request.headers.get("If-None-Match", "").removeprefix("W/")
    response: HttpResponse
    if tag and known == tag and status == 200:
        response = HttpResponseNotModified()
    else:
        shown = {**(reading.context if reading else {}), **context, **rest()}
        response = render(request, template, shown, status=status)
    if tag:
        response["ETag"] = tag
    return response


def _tag(request: HttpRequest, context: dict[str, Any], reading: SharedReading | None) -> str:
    own = {name: value for name, value in context.items() if name != "now"}
    known = reading.fingerprint if reading else ""
    return f'"{fingerprint([own, known, request.user.pk], context["now"])}"'
