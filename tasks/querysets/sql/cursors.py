"""Remember how far the claims of this process have come, so that the next ones go on from there.

A claimed task leaves a dead entry in the index that claims read. Vacuum removes it, but not
while somewhere a transaction is open that is older; then each claim would wade through what
all claims before it have left. So for a quarter of a second a worker's claims begin behind the
last task that it got of a queue, among those of the same priority. As long as they find all they
ask for, that changes which task is claimed first and nothing else; when they find less they look
from the beginning, at once.

Whatever else there is waits for the next look from the beginning: a task of higher priority, and
what another claim passed over or gave back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leasing.runtime.clock import clock

if TYPE_CHECKING:
    from tasks.querysets.claimed import ClaimedTask

#: Seconds from one look from the beginning to the next.
LASTS = 0.25


class ClaimCursor:
    """The position of claims with one filter. Threads may share it: a stale value does no harm."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._after: dict[str, int] = {}

    def after(self, queues: Sequence[str]) -> list[int | None] | None:
        """For each queue the key of the task to begin behind; None: begin at the beginning."""
        now = clock()
        if not 0 <= now - self._began_at < LASTS:
            self._began_at = now
            self._after = {}
        known = self._after
        return [known.get(queue) for queue in queues] if known else None

    def go_on(self, claimed: Sequence[ClaimedTask]) -> None:
        """Record the tasks of a claim, in this order, that found enough of them."""
        self._after = {**self._after, **{each.queue: each.id for each in claimed}}

    def end(self) -> None:
        """There were too few."""
        self._after = {}


_cursors: dict[Any, ClaimCursor] = {}
MAX_CURSORS = 100


def claim_cursor_of(key: Any) -> ClaimCursor:
    """The cursor of the claims that ``key`` tells from others."""
    claim_cursor = _cursors.get(key)
    if claim_cursor is None:
        if len(_cursors) >= MAX_CURSORS:
            _cursors.clear()
        claim_cursor = _cursors[key] = ClaimCursor()
    return claim_cursor
