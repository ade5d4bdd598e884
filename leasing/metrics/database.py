"""Read figures from the database, each of which costs it little.

Reading a figure again takes at most a hundredth of the time: what took a tenth of a second to
read is shown again for ten seconds. No statement of one runs longer than LIMIT.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

from django.db import connections, models, transaction
from prometheus_client.core import Metric

from leasing.conf import leasing_settings
from leasing.db.dialects import limit_waiting
from leasing.runtime.clock import system_clock
from leasing.runtime.event_lines import log

#: The time for which a figure is shown again, in multiples of the time that it took to read.
SHOWN_FOR = 100
#: Seconds that a statement may take.
LIMIT = 5.0
#: Rows that are looked at, at most, where no index helps.
MAX_ROWS = 100_000


class Family(Metric):
    """The samples of one metric.

    Args:
        name: Its name, with the ending _total if it is a counter.
        help: Its description.
        labels: The names of its labels.
    """

    def __init__(self, name: str, help: str, *labels: str) -> None:
        kind = "counter" if name.endswith("_total") else "gauge"
        super().__init__(name.removesuffix("_total"), help, kind)
        self._sample, self._labels = name, labels

    def add(self, value: float, *labels: str) -> Self:
        """Add a sample, and return the family."""
        self.add_sample(self._sample, dict(zip(self._labels, labels, strict=True)), float(value))
        return self

    def add_all(self, values: Mapping[str, float]) -> Self:
        """Add a sample for each value of the one label, and return the family."""
        for label, value in list(values.items()):  # other threads may add to it meanwhile
            self.add(value, label)
        return self


class TooMany(Exception):
    """Reading the figure would cost too much."""


class Figure:
    """Something that ``read`` reads from the database, as families. It may raise TooMany."""

    def __init__(self, name: str, read: Callable[[], Sequence[Family]]) -> None:
        self.name = name
        self._read = read
        self._lock = threading.Lock()
        self._families: Sequence[Family] = ()
        #: 1: it could be read; 0: not; None: that would cost too much.
        self.up: int | None = 0
        self._read_at = float("-inf")
        self._shown_until = float("-inf")
        self._source = ""

    @property
    def age(self) -> float:
        """Seconds since it was read."""
        return system_clock() - self._read_at

    def get(self) -> Sequence[Family]:
        """The families, as they were read not long ago; none where they could not be read."""
        # While one reads, the others wait for it: several scrapers cost no more than one.
        with self._lock:
            using = leasing_settings.DATABASE
            if system_clock() >= self._shown_until or self._source != using:
                self._source = using
                self._get_anew(using)
            return self._families

    def _get_anew(self, using: str) -> None:
        self._families, self._read_at = (), system_clock()
        try:
            with _limited(using):
                self._families = self._read()
            self.up = 1
        except TooMany:
            self.up = None
        except Exception:
            self.up = 0
            log.metrics_unread(figure=self.name, exc_info=True)
        self._shown_until = system_clock() + SHOWN_FOR * (system_clock() - self._read_at)


@contextmanager
def _limited(using: str) -> Iterator[None]:
    """Lets each statement of the block have one process of the server for LIMIT."""
    connection = connections[using]
    if connection.vendor != "postgresql" and not connection.in_atomic_block:
        yield  # on SQLite a transaction would keep others from writing
        return
    with transaction.atomic(using=using):
        limit_waiting(using, LIMIT)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        yield


def refuse_many(rows: models.QuerySet[Any]) -> None:
    """Raise TooMany for more rows than are looked at without an index."""
    if rows.order_by().values("pk")[: MAX_ROWS + 1].count() > MAX_ROWS:
        raise TooMany


def read_all(figures: Iterable[Figure]) -> Iterator[Family]:
    """Every family, and how the reading went."""
    up = Family("leasing_figures_up", "0: could not be read; its metrics are absent.", "figure")
    skipped = Family("leasing_figures_skipped", "1: too many rows to be counted.", "figure")
    age = Family("leasing_figures_age_seconds", "Age of the values.", "figure")
    found: dict[str, Family] = {}
    for figure in figures:
        for family in figure.get():
            # Several figures may have samples of one.
            if family.name not in found:
                found[family.name] = copy(family)
                found[family.name].samples = []
            found[family.name].samples += family.samples
        skipped.add(figure.up is None, figure.name)
        if figure.up is not None:
            up.add(figure.up, figure.name)
        if figure.up:
            age.add(figure.age, figure.name)
    yield from (*found.values(), up, skipped, age)
