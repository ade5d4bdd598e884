"""Explain a lease to an operator with the same five answers as a task.

free, released     nobody holds it
finished           nobody holds it, and ``once`` keeps the result of the work
running_ok, late   it is held; late: a renewal was missed
expired_unclaimed  its holder let it expire, and nobody has acquired it since
flapping           holder after holder lets it expire
clock_skew         it was granted by a clock that was ahead of the database's
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from leasing.diagnosis.base import FLAPPING_WITHIN, FLAPS, Action, Diagnosis, is_skewed
from leasing.humanize import Moment, Sentence, brief, span, stamp, until
from leasing.models import EventKind, Leasable, Lease, LeaseEvent, LeaseState, OnceKey
from leasing.models.event import lengths_of
from leasing.web.badges import LATE, UNKNOWN, Badge, badge_of_lease

#: The permission to revoke a lease.
REVOKE: Final = "leasing.revoke_lease"
#: The name that a process has by default.
_PROCESS: Final = re.compile(r"(.+)@(.+):([0-9]+):[0-9a-f]{8}")
_ENDINGS: Final = (EventKind.RELEASED, EventKind.REVOKED)


@dataclass(frozen=True)
class Explanation(Diagnosis):
    """The diagnosis of a lease."""

    badge: Badge = UNKNOWN
    #: The effect of a revocation by an operator; empty when there is nothing to revoke.
    revoking: str = ""


def explain(
    row: Leasable,
    now: datetime,
    events: Iterable[LeaseEvent] = (),
) -> Explanation:
    """Explain why the lease of ``row`` is as it is.

    Args:
        row: The row, with the columns of its lease.
        now: The moment, by the database's clock.
        events: Its latest events, the newest first. They distinguish a revocation from a release,
            and show if holder after holder lets the lease expire.
    """
    events = list(events)
    ending = next((event for event in events if event.kind in _ENDINGS), None)
    badge = badge_of_lease(row, now)
    state = row.lease_state(now)
    if state == LeaseState.FREE:
        next_ = "The next acquire gets it."
        return Explanation("free", "ok", "Never held.", next_, badge=badge)
    if state == LeaseState.RELEASED:
        if isinstance(row, OnceKey) and row.finished_at is not None:
            return _finished(row, now, badge)
        return Explanation(
            "released",
            "ok",
            _ended(row, ending),
            "The next acquire gets it.",
            until=f"Ended at {stamp(row.released_at or row.expires_at)}.",
            facts=_facts(row),
            badge=badge,
        )
    expired = state == LeaseState.EXPIRED
    found = _expired(row, now, badge) if expired else _held(row, now, badge, events)
    takeovers = [
        each
        for each in events
        if each.kind == EventKind.TAKEN_OVER and now - each.at < FLAPPING_WITHIN
    ]
    return found if len(takeovers) < FLAPS else _flapping(found, takeovers)


def _finished(row: OnceKey, now: datetime, badge: Badge) -> Explanation:
    headline, end = f"Settled by {row.settled_by}.", stamp(row.window_ends_at)
    if not row.settled_by:
        headline = f"Done by {row.holder}."
    next_ = "The window has ended: the next call with this key does the work again."
    if row.window_ends_at > now:
        headline += f" The result is kept until {end}."
        next_ = (
            "Until then, calls with this key get the result and do not do the work. The next call "
            "after that does it again."
        )
    facts = [("Finished", stamp(row.finished_at or now)), ("Window ends", end), *_facts(row)]
    until = f"Ended at {stamp(row.released_at or row.expires_at)}."
    return Explanation("finished", "ok", headline, next_, until=until, facts=facts, badge=badge)


def _expired(row: Leasable, now: datetime, badge: Badge) -> Explanation:
    headline = f"Expired: {row.holder} neither renewed nor released it in time."
    next_ = (
        "The next acquire takes it over with a higher fencing token. From then on, late writes "
        f"by {row.holder} are refused."
    )
    found = _diagnosed(row, now, "expired_unclaimed", "warning", headline, next_, badge)
    refusing = (
        f"Writes by {row.holder} under its token are refused from now on, not only after the next "
        "takeover. Work it has already done elsewhere is not undone."
    )
    return replace(
        found,
        who=f"Nobody. Last holder: {holding(row)}.",
        actions=[Action("revoke", "Refuse late writes", refusing, REVOKE)],
        revoking=refusing,
    )


def holding(row: Leasable) -> str:
    """Return the holder of ``row``, or the last one, with its program where its name does not say
    it: "report-service (stock_report.py, pid 12 on vm)"."""
    process = row.metadata.get("process") if isinstance(row, Lease) else None
    if not isinstance(process, str):
        return row.holder
    program = _PROCESS.sub(r"\1, pid \3 on \2", process)
    return f"{row.holder} ({program})"


def waited_for(lease: Lease, now: datetime, events: Iterable[LeaseEvent] = ()) -> Sentence:
    """Return who waits for ``lease``, and who has held it for how long."""
    who = f"{lease.wanted_by} waits for the lease {lease.resource}, held by "
    return Sentence(now, who, *_holding(lease, events), ".")


def _holding(row: Leasable, events: Iterable[LeaseEvent]) -> list[str | Moment]:
    """Return who holds ``row``, for how long, and for how long earlier terms lasted."""
    if row.acquired_at is None:
        return [holding(row)]
    lengths, _ = lengths_of((each.kind, each.grant_id, each.at) for each in events)
    usually = f" (usually {brief(timedelta(seconds=median(lengths)))})" if lengths else ""
    return [f"{holding(row)} for ", Moment(row.acquired_at, lasts=True), usually]


def _held(row: Leasable, now: datetime, badge: Badge, events: Iterable[LeaseEvent]) -> Explanation:
    next_ = (
        "It stays held while its holder renews it. Otherwise it expires, and the next acquire "
        "takes it over."
    )
    if is_skewed(now, row.acquired_at, row.renewed_at):
        ahead = max(m for m in (row.acquired_at, row.renewed_at) if m is not None) - now
        headline = (
            f"Held by {holding(row)}. The database clock is {span(ahead)} behind the time recorded "
            "here: it was set back, or another server took over."
        )
        next_ = f"If its holder dies, it stays taken {span(ahead)} longer. {next_}"
        return _diagnosed(row, now, "clock_skew", "warning", headline, next_, badge)
    if badge is LATE:
        headline = f"{holding(row)} missed a renewal."
        return _diagnosed(row, now, "late", "warning", headline, next_, badge)
    waits = ""
    if isinstance(row, Lease) and row.wanted_by and row.wanted_until and row.wanted_until > now:
        waits = f"; {row.wanted_by} waits for it"
    headline = Sentence(now, "Held by ", *_holding(row, events), f"{waits}.")
    return _diagnosed(row, now, "running_ok", "ok", headline, next_, badge)


def _diagnosed(
    row: Leasable, now: datetime, code: str, severity: str, headline: str, next_: str, badge: Badge
) -> Explanation:
    revoking = (
        f"{row.holder} loses the lease immediately, and its writes under the old token are "
        "refused. Work it has already done elsewhere is not undone, and another holder may start "
        "while it is still running."
    )
    return Explanation(
        code,
        severity,
        headline,
        next_,
        who=f"{holding(row)}.",
        until=f"{stamp(row.expires_at)}, {until(row.expires_at, now)}.",
        facts=_facts(row),
        actions=[Action("revoke", "Revoke lease", revoking, REVOKE)],
        badge=badge,
        revoking=revoking,
    )


def _facts(row: Leasable) -> list[tuple[str, str]]:
    renewed = [("Last renewal", stamp(row.renewed_at))] if row.renewed_at else []
    return [
        ("Held by", holding(row)),
        ("Since", stamp(row.acquired_at) if row.acquired_at else "never"),
        *renewed,
        ("Until", stamp(row.expires_at)),
        ("Granted", f"{row.grants} times" if row.grants != 1 else "once"),
    ]


def _flapping(found: Explanation, takeovers: list[LeaseEvent]) -> Explanation:
    holders = ", ".join(dict.fromkeys(event.previous_holder for event in takeovers))
    return replace(
        found,
        code="flapping",
        severity="warning",
        headline=found.headline
        + f" Unstable: {len(takeovers)} holders let it expire within {span(FLAPPING_WITHIN)}.",
        next=f"{found.next} This repeats while holders die or cannot reach the database in time; "
        "a longer ttl helps slow holders.",
        facts=[*found.facts, ("Lost by", holders)],
    )


def _ended(row: Leasable, ending: LeaseEvent | None) -> str:
    if ending is None or ending.kind != EventKind.REVOKED:
        return f"Released by {row.holder}."
    by = f" by {ending.actor}" if ending.actor else ""
    why = f": {ending.reason}" if ending.reason else ""
    return f"Revoked from {row.holder}{by}{why}{'' if why.endswith('.') else '.'}"
