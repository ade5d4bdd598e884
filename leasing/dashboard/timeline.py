"""The terms of a lease on a time axis: the holder, the beginning and the end of each.

Pure functions of events and the row: nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from leasing.models import EventKind, Leasable, LeaseEvent

#: A revocation and its event are written by two statements.
AT_ONCE: Final = timedelta(seconds=1)


@dataclass
class Term:
    """One grant, from its beginning to its end."""

    holder: str
    fencing_token: int
    grant_id: object = None
    #: None: before the events that were read.
    began_at: datetime | None = None
    #: None: it goes on.
    ended_at: datetime | None = None
    #: "held" while it goes on; released, revoked, expired; or "unknown", where nothing tells.
    end: str = "held"
    #: True if it was acquired after a term that had expired.
    is_takeover: bool = False
    #: Known of the latest term alone.
    renewals: int | None = None
    #: The moment at which its holder learned that it was over.
    lost_at: datetime | None = None
    #: The moment at which somebody of higher priority asked for it.
    asked_at: datetime | None = None
    #: Refused late writes under its token: the moment, and the verb with the reason.
    refused: list[tuple[datetime, str]] = field(default_factory=list)
    #: Why it was revoked, and by whom.
    reason: str = ""
    actor: str = ""


@dataclass(frozen=True)
class Timeline:
    """Terms of one lease, the oldest first."""

    terms: list[Term]
    now: datetime
    #: True if there were terms before these.
    has_more: bool = False

    @property
    def since(self) -> datetime:
        """Return the start of the axis."""
        known = [term.began_at or term.ended_at for term in self.terms]
        return min((moment for moment in known if moment is not None), default=self.now)


def timeline(
    row: Leasable, now: datetime, events: Iterable[LeaseEvent], *, has_more: bool = False
) -> Timeline:
    """Return the terms of one lease.

    Args:
        row: The leased row, which shows the state of the latest term.
        now: The database's clock.
        events: Events of the lease, the newest first.
        has_more: True if there are older events.
    """
    terms: list[Term] = []
    for event in reversed(list(events)):
        _tell(terms, event)
    if terms:
        _finish(terms[-1], row, now)
    elif row.grants:
        terms.append(_of_row(row, now))
    return Timeline(terms, now, has_more)


def _tell(terms: list[Term], event: LeaseEvent) -> None:
    if event.kind in (EventKind.ACQUIRED, EventKind.TAKEN_OVER):
        _begin(terms, event)
        return
    # A refused write may be of an older term, or come with nothing but its token.
    term = _term_of(terms, event)
    match event.kind:
        case EventKind.RELEASED:
            _end(term, event.at, "released")
        case EventKind.REVOKED:
            ended_at = event.previous_expired_at or event.at
            had_expired = event.at - ended_at > AT_ONCE
            _end(term, ended_at, "expired" if had_expired else "revoked")
            term.reason, term.actor = event.reason, event.actor
        case EventKind.LOST:
            term.lost_at = event.at
        case EventKind.PREEMPTED:
            term.asked_at, term.actor = event.at, event.actor
        case EventKind.REFUSED:
            term.refused.append((event.at, event.reason))


def _begin(terms: list[Term], event: LeaseEvent) -> None:
    is_takeover = event.kind == EventKind.TAKEN_OVER
    if terms and terms[-1].end == "held":
        # A grant that is no takeover follows a release: else the row was created again meanwhile.
        ended_at = event.previous_expired_at if is_takeover else event.at
        _end(terms[-1], ended_at or event.at, "expired" if is_takeover else "unknown")
    terms.append(
        Term(
            event.holder,
            event.fencing_token,
            grant_id=event.grant_id,
            began_at=event.at,
            is_takeover=is_takeover,
        )
    )


def _term_of(terms: list[Term], event: LeaseEvent) -> Term:
    """The term that ``event`` is about; one that began before the events, if none is known."""
    for term in reversed(terms):
        is_granted = event.grant_id is not None and term.grant_id == event.grant_id
        if is_granted or (event.grant_id is None and term.fencing_token == event.fencing_token):
            return term
    if event.kind == EventKind.REVOKED and terms and terms[-1].end == "held":
        return terms[-1]
    term = Term(event.holder, event.fencing_token, grant_id=event.grant_id, end="unknown")
    terms.insert(0, term)
    return term


def _end(term: Term, at: datetime, how: str) -> None:
    term.ended_at, term.end = at, how


def _finish(term: Term, row: Leasable, now: datetime) -> None:
    """Add to the latest term what only the row knows of it."""
    if term.grant_id != row.grant_id:
        if term.end == "held":
            term.end = "unknown"
        return
    term.renewals = row.renewals
    if term.end == "held":
        _stand(term, row, now)


def _of_row(row: Leasable, now: datetime) -> Term:
    """The latest term, of which there is no event (any more)."""
    term = Term(row.holder, row.fencing_token, row.grant_id, began_at=row.acquired_at)
    term.renewals = row.renewals
    _stand(term, row, now)
    return term


def _stand(term: Term, row: Leasable, now: datetime) -> None:
    if row.released_at is not None:
        _end(term, row.released_at, "released")
    elif row.expires_at <= now:
        _end(term, row.expires_at, "expired")
