"""From the figures of all turns to medians, a table, and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.bars import BARS, Bar
from tests.benchmarks.bench import Figures

FIRST = ("limit", "ours")


@dataclass
class Verdict:
    """The result for a bar. ``figure`` is None where nothing was measured."""

    bar: Bar
    figure: float | None
    ok: bool


class Report:
    """The measurements of several turns."""

    def __init__(self, turns: Sequence[Figures], slack: float = 1.0, lower: float = 0.0) -> None:
        self.turns = turns
        #: The factor by which bars are loosened: ``Bar.loosened``.
        self.loosened = slack, lower
        self.names = list(dict.fromkeys(name for turn in turns for name in turn))
        found = {who for turn in turns for by_whom in turn.values() for who in by_whom}
        #: Those who took part: the limit, ours, then others.
        self.contenders = [who for who in FIRST if who in found]
        self.contenders += sorted(found.difference(FIRST))

    def median(self, name: str, who: str) -> float | None:
        """Of the turns' figures."""
        figures = [turn[name][who] for turn in self.turns if who in turn.get(name, {})]
        return statistics.median(figures) if figures else None

    def ratio(self, name: str, who: str, to: str) -> float | None:
        """The median of the ratios that single turns gave."""
        pairs = [turn[name] for turn in self.turns if {who, to} <= turn.get(name, {}).keys()]
        ratios = [each[who] / each[to] for each in pairs if each[to]]
        return statistics.median(ratios) if ratios else None

    def verdicts(self) -> list[Verdict]:
        """The bars, those of which nothing was measured left out."""
        found = []
        for bar in BARS:
            if bar.other:
                figure = self.ratio(bar.name, "ours", bar.other)
            else:
                figure = self.median(bar.name, "ours")
            if figure is not None:
                found.append(Verdict(bar, figure, bar.is_met(figure, *self.loosened)))
        return found

    def tables(self) -> str:
        """All of it, to be read."""
        heads = ["", *self.contenders, "ours/limit"]
        rows = []
        for name in self.names:
            figures = [_number(self.median(name, who)) for who in self.contenders]
            rows.append([name, *figures, _number(self.ratio(name, "ours", "limit"))])
        verdicts = [
            [
                each.bar.name,
                _number(each.figure),
                each.bar.text(*self.loosened),
                "ok" if each.ok else "SHORT",
            ]
            for each in self.verdicts()
        ]
        bars = table(["", "figure", "bar", ""], verdicts)
        return f"{table(heads, rows)}\n\n{bars}"

    def as_json(self) -> dict[str, Any]:
        """All of it, to be kept."""
        return {
            "medians": {
                name: {
                    who: figure
                    for who in self.contenders
                    if (figure := self.median(name, who)) is not None
                }
                for name in self.names
            },
            "ratios": {
                name: {
                    who: ratio
                    for who in self.contenders
                    if who != "limit" and (ratio := self.ratio(name, who, "limit")) is not None
                }
                for name in self.names
            },
            "bars": [asdict(each) for each in self.verdicts()],
            "slack": self.loosened[0],
            "turns": list(self.turns),
        }


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns, the first to the left and the others to the right."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
