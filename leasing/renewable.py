"""The interface of holds that the keeper renews, and the groups that one statement renews."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Protocol

from leasing.store import MAX_RENEWED, Renewal, Store


class Renewable(Protocol):
    """The interface of a hold that the keeper uses."""

    @property
    def store(self) -> Store: ...
    @property
    def key(self) -> Any: ...
    @property
    def grant_id(self) -> uuid.UUID: ...
    @property
    def interval(self) -> float: ...
    @property
    def ttl(self) -> float: ...
    @property
    def is_kept(self) -> bool: ...
    @property
    def overdue_reason(self) -> str: ...

    due_at: float
    trusted_until: float

    def goes_on(self) -> bool: ...
    def give_up(self) -> None: ...
    def renewed(self, sent_at: float, renewal: Renewal) -> None: ...
    def mark_lost(self, reason: str) -> None: ...
    def forget(self) -> None: ...
    def expect_end(self) -> None: ...
    def give_back(self) -> None: ...


#: Holds that are renewed together, and fail together: of one store and of like intervals.
Group = tuple[Store, int]


def group_of(hold: Renewable) -> Group:
    """Return what ``hold`` is renewed together with: intervals of one group are less than twice
    as long as each other."""
    _, octave = math.frexp(hold.interval)
    return hold.store, octave


def is_metered(store: Store | None) -> bool:
    """Return True if requests to ``store`` are what counts: all its holds of like intervals are
    renewed when one of them is due, and no sooner than an interval after the last time."""
    return getattr(store, "is_metered", False)


def in_batches(holds: Iterable[Renewable]) -> Iterator[tuple[Group, dict[Any, Renewable]]]:
    """Group ``holds`` into batches in which each key stands once, short intervals first."""
    groups: dict[Group, list[dict[Any, Renewable]]] = {}
    for hold in holds:
        batches = groups.setdefault(group_of(hold), [{}])
        if len(batches[-1]) >= MAX_RENEWED or hold.key in batches[-1]:
            batches.append({})
        batches[-1][hold.key] = hold
    for group in sorted(groups, key=itemgetter(1)):
        for batch in groups[group]:
            yield group, batch
