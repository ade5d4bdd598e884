"""When PostgreSQL plans a statement again that it has prepared.

Where statements are prepared, one that was planned for an empty table may read all of a full one,
until something analyzes the table. To plan each claim takes longer than to claim, and a task that
was just enqueued waits for it.
"""

from __future__ import annotations

from functools import lru_cache

from leasing.runtime.clock import clock

#: Seconds that a plan is used; and the seconds that a claim, and each task that it finds, may take
#: before a plan is made again.
PLAN_LASTS, SLOW, SLOW_EACH = 15.0, 0.02, 0.0004
#: Seconds after a slow claim in which others change nothing. To plan again makes ten statements
#: dear: where the disk is slow it would be all of them.
SLOW_LASTS = 1.0
_slow_claims, _slow_at = 0, float("-inf")


def planned(statement: str) -> str:
    """Return ``statement`` with a comment that changes every PLAN_LASTS seconds, and as soon as a
    claim was slow: it is then another statement, and planned again. Until then it is the same
    object, for by this the driver knows a statement that it has sent before."""
    return _commented(statement, f"-- {int(clock() // PLAN_LASTS)}.{_slow_claims}")


@lru_cache(maxsize=100)
def _commented(statement: str, comment: str) -> str:
    return statement + comment


def plan_took(seconds: float, found: int) -> None:
    """Note for how many ``seconds`` a claim took that ``found`` so many. After a slow one, whatever
    the reason, others are planned again; but not again and again."""
    global _slow_claims, _slow_at
    if seconds > SLOW + SLOW_EACH * found:
        now = clock()
        if not 0 <= now - _slow_at < SLOW_LASTS:
            _slow_claims, _slow_at = _slow_claims + 1, now
