"""Clocks that stand still, for tests of waiting and of deadlines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasing.testing.keeper import ManualKeeper


class Waits:
    """Waiters while the clocks stand still: each pause is over at once, and recorded."""

    def __init__(self, clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        self._clocks = clocks
        self._plans: list[tuple[float, Callable[[], object]]] = []
        monkeypatch.setattr(clocks, "pause", self._pause)

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Call ``do`` when so much of the waiting has passed."""
        self._plans.append((self._clocks.passed + seconds, do))

    def _pause(self, resource: str, seconds: float) -> float:
        self.seconds.append(seconds)
        end = self._clocks.passed + seconds
        for at, do in [plan for plan in self._plans if plan[0] <= end]:
            self._plans.remove((at, do))
            self._clocks.advance(max(0.0, at - self._clocks.passed))
            do()
        self._clocks.advance(end - self._clocks.passed)
        return 0.0
