"""A chart as lines on a grid: numbers for a template to put into SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from django.utils import timezone

from leasing.humanize import DATE, TIME, TIME_TO_MINUTE, span
from tasks.dashboard.charts import Chart, Line

#: The range of the drawing, in pixels from the top; the axis is the lower one.
TOP, BOTTOM = 18, 128
#: The field of the paths, fine enough for whole numbers, which weigh less.
WIDTH, HEIGHT = 720, 220
#: The colours of lines that mean something; the other lines take those of PLAIN in turn.
TONES: Final = {
    "failed": "crit",
    "retried": "three",
    "recovered": "warn",
    "expirations": "warn",
    "p95": "two",
    "still waiting": "warn",
}
#: The number of points over which a chart is spread, at least.
FEWEST_POINTS: Final = 12
#: Ends of an axis of seconds beyond a minute.
LONG_TIMES: Final = (60, 120, 240, 600, 1_200, 3_600, 7_200, 14_400, 28_800, 86_400, 604_800)
HOUR, HALF_A_DAY = timedelta(hours=1), timedelta(hours=12)
PLAIN: Final = ("one", "two", "three")


@dataclass(frozen=True)
class Stroke:
    """One line: its name, the class of its colour, its latest value, and its path."""

    name: str
    tone: str
    latest: str
    path: str
    #: The same path, closed along the axis; only of the first line.
    area: str = ""


@dataclass(frozen=True)
class Tick:
    """A line of the grid, and its label."""

    y: float
    label: str


@dataclass(frozen=True)
class Drawing:
    """``strokes`` are in a field of WIDTH by HEIGHT, which the page stretches to its width."""

    strokes: Sequence[Stroke]
    ticks: Sequence[Tick]
    begin: str
    end: str


def trimmed(charts: Sequence[Chart]) -> list[Chart]:
    """Return ``charts``, which share their moments, from the first moment with a value in one of
    them, so that a minute of values is not squeezed into a corner; without moments if there is no
    value."""
    known = [
        index
        for chart in charts
        for line in chart.lines
        for index, value in enumerate(line.values)
        if value is not None
    ]
    if not known:
        return [replace(chart, moments=[], lines=[]) for chart in charts]
    begin = max(0, min(min(known), len(charts[0].moments) - FEWEST_POINTS))
    return [
        replace(
            chart,
            moments=chart.moments[begin:],
            lines=[replace(line, values=line.values[begin:]) for line in chart.lines],
        )
        for chart in charts
    ]


def draw(chart: Chart) -> Drawing | None:
    """Return ``chart`` as a drawing; None if it has no value. The drawing has the lines that rise
    above zero; the first line if none does."""
    filled = [line for line in chart.lines if any(value is not None for value in line.values)]
    lines = [line for line in filled if line.greatest > 0] or filled[:1]
    if not lines:
        return None
    top = ceiling(chart.greatest, chart.unit)
    plain = iter(PLAIN * len(lines))
    strokes = []
    for index, line in enumerate(lines):
        path, area = _paths(line.values, top, line.bridged)
        strokes.append(
            Stroke(
                line.name,
                TONES.get(line.name) or next(plain),
                format_value(_latest(line), chart.unit),
                path,
                "" if index else area,
            )
        )
    ticks = [
        Tick(BOTTOM - share * (BOTTOM - TOP), format_value(top * share, chart.unit))
        for share in (1.0, 0.5, 0.0)
    ]
    reach = chart.moments[-1] - chart.moments[0]
    form = TIME_TO_MINUTE if reach > HOUR else TIME
    if reach > HALF_A_DAY:
        form = f"{DATE} {form}"
    begin, end = (timezone.localtime(chart.moments[index]).strftime(form) for index in (0, -1))
    return Drawing(strokes, ticks, begin, end)


def ceiling(greatest: float, unit: str = "") -> float:
    """Return the end of an axis: the least of 1, 2, 4, 5 and their tenfolds that ``greatest`` does
    not pass, or of whole minutes, hours and days for long times."""
    least = max(greatest, 0.1 if unit == "s" else 2)
    if unit == "s" and 60 < least <= LONG_TIMES[-1]:
        return next(time for time in LONG_TIMES if time >= least)
    power = 10.0 ** math.floor(math.log10(least))
    # A little slack, or 0.3 would not be three times 0.1.
    step = next(step for step in (1, 2, 4, 5, 10) if step * power >= least * (1 - 1e-9))
    return step * power


def format_value(value: float | None, unit: str = "") -> str:
    """Return ``value`` with its significant digits."""
    if value is None:
        return "–"
    if unit == "s" and value >= 60:
        return span(value)
    if unit == "s" and 0 < value < 0.1:
        return f"{max(1, round(1000 * value))} ms"
    text = f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
    text = text.removesuffix(".0")
    return f"{text} s" if unit == "s" else text


def _latest(line: Line) -> float | None:
    return next((value for value in reversed(line.values) if value is not None), None)


def _paths(values: Sequence[float | None], top: float, bridged: int) -> tuple[str, str]:
    """Return a line through the middle of each point's time, and the area below it. The line breaks
    where more than ``bridged`` values in a row are unknown."""
    step = WIDTH / max(1, len(values))
    path, area = [], []
    run: list[tuple[float, float]] = []
    unknown = 0
    for index, value in enumerate([*values, *[None] * (bridged + 1)]):
        unknown = unknown + 1 if value is None else 0
        if value is not None:
            run.append((step * (index + 0.5), HEIGHT * (1 - min(1.0, value / top))))
        elif run and unknown > bridged:
            if len(run) == 1:  # a point alone lasts as long as it stands for
                (x, y), *_ = run
                run = [(x - step / 2, y), (x + step / 2, y)]
            points = "L".join(f"{x:.0f} {y:.0f}" for x, y in run)
            path.append(f"M{points}")
            area.append(f"M{run[0][0]:.0f} {HEIGHT}L{points}V{HEIGHT}Z")
            run = []
    return "".join(path), "".join(area)
