"""The health of a fleet: its parent is alive if it answers at all, its children by their
reports."""

from __future__ import annotations

from collections.abc import Iterator

from leasing.runtime.clock import clock
from tasks.fleet.parent import Parent
from tasks.fleet.status import ChildStatus, Member
from tasks.runtime.health import HUNG_AFTER, LATE_AFTER, Health


class FleetHealth:
    """Judges the fleet of ``parent``."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent

    def read(self) -> Health:
        """Return the health of the fleet now."""
        healths = {f"Worker {index}": health for index, health in self._healths()}
        if self._parent.is_stopping:
            healths["Parent"] = Health(closed=("Shutting down.",))
        return Health.of_all(healths)

    def _healths(self) -> Iterator[tuple[int, Health]]:
        for member in self._parent.members:
            if member.child is not None:
                yield member.index, _of(member.child)
            elif member.is_awaited and not self._parent.is_stopping:
                yield member.index, _of_none(member)


def _of(child: ChildStatus) -> Health:
    silent_for = clock() - (child.started_at if child.beat_at is None else child.beat_at)
    if silent_for > LATE_AFTER:
        reason = (f"No report for {silent_for:.0f} s.",)
        return Health(hung=reason) if silent_for > HUNG_AFTER else Health(stalled=reason)
    if child.beat_at is None:
        return Health(closed=("Starting.",))
    return Health(**{name: tuple(said) for name, said in child.vitals["health"].items()})


def _of_none(member: Member) -> Health:
    if not member.last_end:
        return Health(closed=("Starting.",))
    return Health(stalled=(f"Restarting: {member.last_end}.",))
