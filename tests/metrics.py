"""Reading metrics in tests."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

#: Every sample of a metric, by its labels in the order of their names.
Samples = dict[tuple[str, ...], float]


class Scrape:
    """Metrics that were scraped, as text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.names.add(sample.name)
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sum(self, name: str, **labels: str) -> float:
        """The sum over all samples with these ``labels``."""
        return sum(
            value for own, value in self._samples.get(name, ()) if labels.items() <= own.items()
        )

    @property
    def labels(self) -> set[str]:
        """The names of all labels."""
        return {label for each in self._samples.values() for own, _ in each for label in own}


def scrape(port: int) -> Scrape:
    """Return the metrics of a process at ``port``."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
        return Scrape(response.read().decode())


def check_names(text: str) -> None:
    """Check ``text`` by promtool; the test is skipped where there is none."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    # What the client library itself shows is not ours to name.
    said = [
        line
        for line in checked.stderr.splitlines()
        if line.startswith(("leasing_", "tasks_")) or "error" in line
    ]
    assert said == [], checked.stderr


#: The value of a counter, a gauge, or a part of a histogram; 0 where there is none.
Value = Callable[..., float]


def reading(registry: Any) -> Value:
    """Reads ``registry``."""

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(name, labels) or 0.0

    return value
