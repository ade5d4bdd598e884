"""Signs of states: icon, word and colour together, so that none has to carry it alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from leasing.holding.term import longest_pause, margin
from leasing.models import AuditEntry, BeatEntry, EventKind, Leasable, Lease, LeaseState
from leasing.models.api_token import TokenState


@dataclass(frozen=True)
class Badge:
    """The word, tone and icon of a state.

    ``tone`` is ok, info, warn, crit or mute; ``icon`` names a symbol of ``icons.svg``; ``mark``
    is one character that stands for the icon where there is only text (the admin).
    """

    word: str
    tone: str
    icon: str
    mark: str


NOT_YET: Final = Badge("none yet", "mute", "circle", "○")
SENT: Final = Badge("sent", "ok", "check", "✓")
UNSURE: Final = Badge("possibly not sent", "warn", "alert", "!")
FREE: Final = Badge("free", "mute", "circle", "○")
ACTIVE: Final = Badge("active", "ok", "lock", "●")
LATE: Final = Badge("late", "warn", "clock", "◔")
EXPIRED: Final = Badge("expired", "warn", "alert", "▲")
RELEASED: Final = Badge("released", "mute", "unlock", "◌")

LEASE_BADGES: Final = {
    LeaseState.FREE: FREE,
    LeaseState.ACTIVE: ACTIVE,
    LeaseState.EXPIRED: EXPIRED,
    LeaseState.RELEASED: RELEASED,
}

EVENT_BADGES: Final = {
    EventKind.ACQUIRED: Badge("acquired", "ok", "lock", "●"),
    EventKind.TAKEN_OVER: Badge("taken over", "warn", "swap", "⇄"),
    EventKind.RELEASED: Badge("released", "mute", "unlock", "◌"),
    EventKind.REVOKED: Badge("revoked", "warn", "shield", "◆"),
    EventKind.PREEMPTED: Badge("preempted", "warn", "swap", "⇄"),
    EventKind.LOST: Badge("lost", "crit", "alert", "▲"),
    EventKind.REFUSED: Badge("write refused", "crit", "slash", "⊘"),
}

TOKEN_BADGES: Final = {
    TokenState.USABLE: Badge("usable", "ok", "check", "✓"),
    TokenState.EXPIRED: EXPIRED,
    TokenState.REVOKED: Badge("revoked", "mute", "slash", "⊘"),
}

DONE: Final = Badge("done", "ok", "check", "✓")
PARTLY: Final = Badge("partly done", "warn", "info", "◐")
NO_CHANGE: Final = Badge("no change", "mute", "circle", "○")
REFUSED: Final = Badge("failed", "crit", "cross", "✕")
BROKEN_OFF: Final = Badge("unfinished", "warn", "alert", "?")

UNKNOWN: Final = Badge("unknown", "mute", "circle", "?")


def is_late(row: Leasable, now: datetime) -> bool:
    """Return True if the holder of an active ``row`` has certainly missed a renewal by ``now``:
    half of its time is over, and the renewal is not only slow."""
    left, ttl = (row.expires_at - now).total_seconds(), row.ttl.total_seconds()
    latest = max(ttl / 2, longest_pause(ttl) + margin(ttl))
    return left < ttl - latest


def badge_of_lease(row: Leasable, now: datetime) -> Badge:
    """The badge of the lease of ``row`` at ``now``, which is the database's clock."""
    state = row.lease_state(now)
    if state == LeaseState.ACTIVE and is_renewed(row) and is_late(row, now):
        return LATE
    return LEASE_BADGES[state]


def is_renewed(row: Leasable) -> bool:
    """Return True if ``row`` is known to be renewed: the holder of a named lease may never intend
    to."""
    return row.renewals > 0 or not isinstance(row, Lease)


def badge_of_entry(entry: AuditEntry) -> Badge:
    """Return the badge of an operator's action. An action without an outcome was broken off, or is
    under way."""
    if entry.error:
        return REFUSED
    if entry.changed is None:
        return BROKEN_OFF
    if not entry.changed:
        return NO_CHANGE
    return PARTLY if entry.asked and entry.changed < entry.asked else DONE


def badge_of_event(kind: str) -> Badge:
    """The badge of an event; a kind that a later version wrote is shown as it is called."""
    known = EVENT_BADGES.get(kind)  # type: ignore[call-overload]
    return known or Badge(kind, UNKNOWN.tone, UNKNOWN.icon, UNKNOWN.mark)


def badge_of_beat(entry: BeatEntry) -> Badge:
    """Return the badge of the latest slot of a beat's entry."""
    if not entry.runs:
        return NOT_YET
    return UNSURE if entry.is_unsure else SENT
