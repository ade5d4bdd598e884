"""The terms of a lease on an axis of time: holders, rising tokens, refused writes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from leasing.dashboard.timeline import Term, Timeline
from leasing.humanize import plural, span
from leasing.models import EventKind, Leasable
from leasing.web.badges import EXPIRED, Badge, badge_of_event, badge_of_lease
from leasing.web.timeline_chart import Drawing, Mark, Span, Track, draw

#: Terms that a drawing shows at most.
MAX_TERMS: Final = 12
END_UNKNOWN: Final = Badge("ended, time unknown", "mute", "circle", "?")


def drawing_of(row: Leasable, timeline: Timeline) -> Drawing:
    """The drawing of the latest terms of the lease of ``row``."""
    terms = timeline.terms
    before = [None, *terms]
    first = max(1, row.grants - len(terms) + 1)
    tracks = [
        _track(f"Term {number}", term, previous, row, timeline)
        for number, (term, previous) in enumerate(zip(terms, before, strict=False), first)
    ]
    left_out = timeline.has_more or len(tracks) > MAX_TERMS
    return draw(tracks[-MAX_TERMS:], timeline.now, left_out=left_out)


def _track(
    title: str, term: Term, previous: Term | None, row: Leasable, timeline: Timeline
) -> Track:
    badge = _badge(term, row, timeline.now)
    start = term.began_at or timeline.since
    end = term.ended_at if term.end != "unknown" else term.ended_at or start
    lasted = f", {span(end - start)}" if end else ""
    bar = Span(start, end, badge.tone, f"{term.holder}: {badge.word}{lasted}")
    return Track(
        badge,
        title,
        term.holder,
        term.fencing_token,
        start,
        end,
        ", ".join(_notes(term, previous)),
        aside=f"token {term.fencing_token}",
        spans=[bar],
        marks=list(_marks(term)),
    )


def _badge(term: Term, row: Leasable, now: datetime) -> Badge:
    match term.end:
        case "held":
            return badge_of_lease(row, now)
        case "released" | "revoked":
            return badge_of_event(term.end)
        case "expired":
            return EXPIRED
        case _:
            return END_UNKNOWN


def _notes(term: Term, previous: Term | None) -> Iterable[str]:
    if term.is_takeover:
        yield f"taken over from {previous.holder}" if previous else "taken over"
    if term.renewals:
        yield f"renewed {plural(term.renewals, 'time')}"
    if term.end == "revoked":
        yield f"revoked by {term.actor or 'an operator'}" + (
            f": {term.reason}" if term.reason else ""
        )
    if term.refused:
        yield f"{plural(len(term.refused), 'late write')} refused"


def _marks(term: Term) -> Iterable[Mark]:
    if term.is_takeover and term.began_at:
        yield Mark(
            term.began_at, "warn", f"{badge_of_event(EventKind.TAKEN_OVER).word.capitalize()}"
        )
    if term.asked_at:
        yield Mark(term.asked_at, "warn", "Asked to yield")
    if term.lost_at:
        yield Mark(term.lost_at, "crit", "Holder noticed the loss")
    for at, what in term.refused:
        yield Mark(at, "crit", f"Late write refused: {what}")
