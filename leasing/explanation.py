"""What is the matter with a lease, in the words of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from leasing.models import EventKind, Leasable, LeaseEvent, LeaseState
from leasing.signs import LATE, Sign, lease_sign


@dataclass(frozen=True)
class Explanation:
    """Why a lease is as it is, and what happens next."""

    sign: Sign
    headline: str
    next: str
    #: What an operator's revocation would do; empty when there is nothing to revoke.
    revoking: str = ""


def explain(row: Leasable, now: datetime, ending: LeaseEvent | None = None) -> Explanation:
    """Explain the lease of ``row`` at ``now``, the database's clock.

    ``ending`` is the event that ended its latest term, where the ledger has one: it tells a
    revocation from a release.
    """
    sign = lease_sign(row, now)
    state = row.lease_state(now)
    if state == LeaseState.FREE:
        return Explanation(sign, "Nobody has ever held it.", "The first to ask for it gets it.")
    if state == LeaseState.RELEASED:
        return Explanation(
            sign, _ended(row, ending), "Nobody holds it. The next to ask for it gets it."
        )
    revoking = (
        f"{row.holder} loses it at once, and what it still writes under the old token is "
        "refused. What it has already done elsewhere is not undone, and another may begin "
        "while it still runs."
    )
    if state == LeaseState.EXPIRED:
        return Explanation(
            sign,
            f"{row.holder} neither renewed it nor gave it back in time.",
            "Nobody holds it. The next to ask takes it over under a greater token, and a late "
            f"write by {row.holder} is refused.",
            revoking,
        )
    late = sign is LATE
    headline = f"{row.holder} has missed a renewal." if late else f"{row.holder} holds it."
    return Explanation(
        sign,
        headline,
        "While its holder renews it, it stays held. Otherwise it expires at that time, and "
        "the next to ask takes it over.",
        revoking,
    )


def _ended(row: Leasable, ending: LeaseEvent | None) -> str:
    if ending is None or ending.kind != EventKind.REVOKED:
        return f"{row.holder} gave it back."
    by = f" by {ending.actor}" if ending.actor else ""
    why = f": {ending.reason}" if ending.reason else ""
    return f"It was taken from {row.holder}{by}{why}{'' if why.endswith('.') else '.'}"
