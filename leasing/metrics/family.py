"""The samples of one metric that are collected when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from prometheus_client.core import Metric


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
