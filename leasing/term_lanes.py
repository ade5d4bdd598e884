"""The terms of a lease on an axis of time: holders, rising tokens, refused writes.

Renewals are in no ledger: each term is one bar, however often it was renewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from leasing.drawing import Drawing, Lane, Mark, Span, draw
from leasing.history import BEGINNINGS, TURNS, end_told_by
from leasing.models import EventKind, Leasable, LeaseEvent, LeaseState
from leasing.signs import EXPIRED, Sign, event_sign, lease_sign
from leasing.wording import plural, span

#: How many terms a drawing shows.
MOST: Final = 12
UNTOLD: Final = Sign("ended, nobody noted when", "mute", "circle", "?")


def drawing_of(row: Leasable, events: Sequence[LeaseEvent], now: datetime) -> Drawing:
    """The drawing of the lease of ``row`` at ``now``; ``events`` are its latest, newest first."""
    lanes = [_term(row, events, at, now) for at in _beginnings(events)]
    if not lanes and row.grants:
        lanes = [_of_the_row(row, now, [])]  # a model that keeps no events
    first = max(1, row.grants - len(lanes) + 1)
    named = [replace(lane, title=f"Term {number}") for number, lane in enumerate(lanes, first)]
    return draw(named[-MOST:], now, left_out=len(named) > MOST)


def _beginnings(events: Sequence[LeaseEvent]) -> list[int]:
    """The places of the events that began a term, the earliest term first."""
    return [at for at, event in enumerate(events) if event.kind in BEGINNINGS][::-1]


def _term(row: Leasable, events: Sequence[LeaseEvent], at: int, now: datetime) -> Lane:
    """The term that ``events[at]`` began."""
    begun = events[at]
    turn = next((event for event in reversed(events[:at]) if event.kind in TURNS), None)
    marks = [
        Mark(event.at, "crit", f"A late write was refused: {event.reason}")
        for event in events
        if event.kind == EventKind.REFUSED and event.grant_id == begun.grant_id
    ]
    if row.grant_id == begun.grant_id:
        is_revoked = turn is not None and turn.kind == EventKind.REVOKED
        return _of_the_row(row, now, marks, begun, is_revoked=is_revoked)
    end = begun.at if turn is None else end_told_by(turn) or turn.at
    sign = UNTOLD if turn is None else _ending(turn)
    return _lane(begun, sign, begun.holder, begun.fencing_token, begun.at, end, marks)


def _of_the_row(
    row: Leasable,
    now: datetime,
    marks: list[Mark],
    begun: LeaseEvent | None = None,
    *,
    is_revoked: bool = False,
) -> Lane:
    """The latest term, which the row itself knows best."""
    assert row.acquired_at is not None
    sign = event_sign(EventKind.REVOKED) if is_revoked else lease_sign(row, now)
    is_held = row.lease_state(now) == LeaseState.ACTIVE
    end = None if is_held else row.released_at or row.expires_at
    token = row.fencing_token if begun is None else begun.fencing_token
    renewed = f"renewed {plural(row.renewals, 'time')}" if row.renewals else ""
    return _lane(begun, sign, row.holder, token, row.acquired_at, end, marks, renewed)


def _ending(turn: LeaseEvent) -> Sign:
    """How the term before ``turn`` ended."""
    if turn.kind in (EventKind.RELEASED, EventKind.REVOKED):
        return event_sign(turn.kind)
    return EXPIRED if turn.kind == EventKind.TAKEN_OVER else UNTOLD


def _lane(
    begun: LeaseEvent | None,
    sign: Sign,
    holder: str,
    token: int,
    start: datetime,
    end: datetime | None,
    marks: list[Mark],
    renewed: str = "",
) -> Lane:
    said = [renewed, plural(len(marks), "late write") + " refused" if marks else ""]
    if begun is not None and begun.kind == EventKind.TAKEN_OVER:
        said.insert(0, f"taken over from {begun.previous_holder}")
        marks = [Mark(start, "warn", f"Taken over, token {token}"), *marks]
    lasted = f", {span(end - start)}" if end else ""
    bar = Span(start, end, sign.tone, f"{holder}: {sign.word}{lasted}, token {token}")
    return Lane(
        sign,
        "Term",
        holder,
        token,
        start,
        end,
        ", ".join(filter(None, said)),
        aside=f"token {token}",
        spans=[bar],
        marks=marks,
    )
