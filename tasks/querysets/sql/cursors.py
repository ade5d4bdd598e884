"""Remember how far the claims of a worker have come, so that the next ones go on from there.

A claimed task leaves a dead entry in the index that claims read. Vacuum removes it, but not
while somewhere a transaction is open that is older; then each claim would wade through what
all claims before it have left. So for a quarter of a second a worker's claims begin behind the
last task that it got of a queue and a kind, among those of the same priority. As long as they find
all they ask for, that changes which task is claimed first and nothing else; when they find less
they look from the beginning, at once.

Whatever else there is waits for the next look from the beginning: what another claim passed over
or gave back, and a task of higher priority of which nobody was notified (``end_below``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from leasing.runtime.clock import clock

if TYPE_CHECKING:
    from tasks.querysets.claimed import ClaimedTask

#: Seconds from one look from the beginning to the next.
LASTS = 0.25


class ClaimCursor:
    """The position of the claims of one worker. Threads may share it: a stale one does no harm."""

    def __init__(self, lasts: float = LASTS) -> None:
        self._lasts = lasts
        self._began_at = 0.0
        #: The last task that was claimed of each queue and kind.
        self._after: dict[tuple[str, int], ClaimedTask] = {}

    def after(self, places: Iterable[tuple[str, int]]) -> list[int | None] | None:
        """For each of ``places``, a queue and a kind, the key of the task to begin behind; None:
        begin at the beginning."""
        now = clock()
        if not 0 <= now - self._began_at < self._lasts:
            self._began_at = now
            self._after = {}
        known = self._after
        if not known:
            return None
        marks = map(known.get, places)
        return [None if mark is None else mark.id for mark in marks]

    def go_on(self, claimed: Iterable[ClaimedTask]) -> None:
        """Record the tasks of a claim, in this order, that found enough of them."""
        self._after = {**self._after, **{(each.queue, each.kind): each for each in claimed}}

    def end(self, kinds: Container[int]) -> bool:
        """Begin at the beginning with these ``kinds``, of which there were too few. Return True if
        that is another place."""
        known = self._after
        self._after = {place: key for place, key in known.items() if place[1] not in kinds}
        return len(self._after) < len(known)

    def end_below(self, queue: str, priority: int) -> None:
        """Begin at the beginning if it is at a lower ``priority`` of ``queue``: something of this
        priority has become ready there."""
        if any(each.queue == queue and each.priority < priority for each in self._after.values()):
            self._after = {}
