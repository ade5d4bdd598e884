"""Counts that stop where it is not worth to go on, and that polls of open pages share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models import Case, IntegerField, Q, Value, When

from leasing.conf import leasing_settings

COUNT_CAP = 10_000
#: Among how many rows of a list its search counts.
SEARCH_CAP = 1_000
#: Seconds that polls share the counts of a page whose rows stay the same: longer where some
#: of them stopped at their cap, which take longest to count and show no change.
COUNTS_SHARED_FOR, CAPPED_SHARED_FOR = 15.0, 60.0

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Capped:
    """A count that stopped counting at ``cap``, or that left rows uncounted (``more``)."""

    value: int
    cap: int = COUNT_CAP
    more: bool = False

    def __str__(self) -> str:
        if self.value > self.cap:
            return f"{self.cap:,}+"
        return f"{self.value:,}+" if self.more else f"{self.value:,}"

    def __bool__(self) -> bool:
        return self.value > 0

    @property
    def is_capped(self) -> bool:
        """Return True if there are more than were counted."""
        return self.more or self.value > self.cap

    def __add__(self, other: Capped) -> Capped:
        return Capped(self.value + other.value, self.cap, self.more or other.more)


@dataclass(frozen=True)
class Tally:
    """Counts of the first ``cap`` + 1 of ``rows``: of those that meet each of ``conditions``.

    ``rows`` have the order of an index of theirs, where there is one: without it a database that
    takes them for many may look through the whole table for the first.
    """

    rows: models.QuerySet[Any]
    #: An empty one is met by all.
    conditions: Mapping[str, Q]
    cap: int = COUNT_CAP


def capped_count(rows: models.QuerySet[Any], cap: int = COUNT_CAP) -> Capped:
    """Return the number of ``rows``, in any order, looking at ``cap`` + 1 of them at most."""
    return Capped(rows.order_by().values("pk")[: cap + 1].count(), cap)


def count_together(tallies: Mapping[Key, Tally]) -> dict[Key, dict[str, Capped]]:
    """Return the counts of each of ``tallies``, read by one statement."""
    if not tallies:
        return {}
    tables: list[str] = []
    params: list[Any] = []
    connection = connections[leasing_settings.DATABASE]
    for number, tally in enumerate(tallies.values()):
        marks = {f"m{place}": _mark(each) for place, each in enumerate(tally.conditions.values())}
        rows = tally.rows.values(**marks)[: tally.cap + 1]
        try:
            sql, own = rows.query.get_compiler(connection.alias).as_sql()
        except EmptyResultSet:
            sql, own = f"SELECT {', '.join(f'NULL AS {mark}' for mark in marks)} WHERE 1 = 0", ()
        counts = ", ".join(["COUNT(*)", *[f"COUNT({mark})" for mark in marks]])
        tables.append(f"(SELECT {counts} FROM ({sql}) r{number}) t{number}")
        params += own
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {', '.join(tables)}", params)
        numbers = iter(cursor.fetchone())
    return {key: _counts(tally, numbers) for key, tally in tallies.items()}


def _mark(condition: Q) -> Any:
    """An expression that is null in rows that do not meet ``condition``."""
    one = Value(1, IntegerField())
    return Case(When(condition, then=one)) if condition else one


def _counts(tally: Tally, numbers: Iterator[int]) -> dict[str, Capped]:
    has_more = next(numbers) > tally.cap
    return {
        name: Capped(next(numbers), tally.cap, more=bool(condition) and has_more)
        for name, condition in tally.conditions.items()
    }
