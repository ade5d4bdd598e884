"""Charts as lines on a grid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tasks.dashboard.charts import Chart, Line
from tasks.dashboard.line_chart import (
    BOTTOM,
    HEIGHT,
    TOP,
    WIDTH,
    ceiling,
    draw,
    format_value,
    trimmed,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def chart(*lines: list[float | None], every: int = 10, bridged: int = 0) -> Chart:
    moments = [NOON + timedelta(seconds=every * n) for n in range(len(lines[0]))]
    named = [Line(f"line-{number}", values, bridged) for number, values in enumerate(lines)]
    return Chart("depth", "Queue depth", "tasks", moments, named)


@pytest.mark.parametrize(
    ("greatest", "top"),
    [(0, 2), (2, 2), (2.1, 4), (4.5, 5), (7, 10), (0.3, 2), (99, 100), (101, 200), (3_000, 4_000)],
)
def test_the_axis_ends_at_a_round_number_that_nothing_passes(greatest: float, top: float) -> None:
    assert ceiling(greatest) == pytest.approx(top)


@pytest.mark.parametrize(("seconds", "top"), [(0.01, 0.1), (0.3, 0.4), (61, 120), (9_000, 14_400)])
def test_an_axis_of_times_ends_at_whole_minutes_and_hours(seconds: float, top: float) -> None:
    assert ceiling(seconds, "s") == pytest.approx(top)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (None, "s", "–"),
        (0, "", "0"),
        (0.456, "s", "0.46 s"),
        (0.0062, "s", "6 ms"),
        (0.0001, "s", "1 ms"),
        (0.04, "", "0.04"),
        (2.04, "s", "2 s"),
        (9.94, "", "9.9"),
        (1234.5, "", "1,234"),
        (90, "s", "1 min 30 s"),
    ],
)
def test_figures_have_as_many_digits_as_tell_something(
    value: float | None, unit: str, words: str
) -> None:
    assert format_value(value, unit) == words


def test_the_line_of_a_depth_goes_on_where_it_was_not_noted_for_a_moment() -> None:
    drawing = draw(chart([2, None, None, 0, None, None, None, 1, None], bridged=2))
    assert drawing is not None
    (stroke,) = drawing.strokes
    step = WIDTH // 9
    assert stroke.path.split("M")[1:] == [
        f"{step // 2} 0L{step * 7 // 2} {HEIGHT}",
        f"{step * 7} {HEIGHT // 2}L{step * 8} {HEIGHT // 2}",
    ]


def test_a_line_is_broken_where_nobody_knows() -> None:
    drawing = draw(chart([2, 0, None, 1, None, 2]))
    assert drawing is not None
    (stroke,) = drawing.strokes
    step = WIDTH // 6
    assert stroke.path.split("M")[1:] == [
        f"{step // 2} 0L{step * 3 // 2} {HEIGHT}",
        # One alone is a line of the length of its time.
        f"{step * 3} {HEIGHT // 2}L{step * 4} {HEIGHT // 2}",
        f"{step * 5} 0L{step * 6} 0",
    ]
    assert stroke.area.count("Z") == 3
    assert stroke.latest == "2"


def test_the_grid_says_where_it_is() -> None:
    drawing = draw(chart([30.0, 70.0]))
    assert drawing is not None
    assert [(tick.y, tick.label) for tick in drawing.ticks] == [
        (TOP, "100"),
        ((TOP + BOTTOM) / 2, "50"),
        (BOTTOM, "0"),
    ]
    assert (drawing.begin, drawing.end) == ("12:00:00", "12:00:10")


def test_lines_that_stay_at_zero_are_left_out_unless_all_do() -> None:
    some = draw(chart([0, 0], [1, 0], [None, None]))
    none = draw(chart([0, 0], [0, 0]))
    assert some is not None and [stroke.name for stroke in some.strokes] == ["line-1"]
    assert none is not None and [stroke.name for stroke in none.strokes] == ["line-0"]
    assert draw(chart([None, None])) is None


def test_far_times_are_told_with_their_day() -> None:
    drawing = draw(chart([1.0] * 25, every=3600))
    assert drawing is not None
    assert (drawing.begin, drawing.end) == ("2026-01-01 12:00", "2026-01-02 12:00")


def test_what_began_lately_fills_the_chart_but_never_two_points_alone() -> None:
    young, old = [None] * 58 + [1.0, 2.0], [None] * 20 + [1.0] * 40
    (shown,) = trimmed([chart(young)])
    assert list(shown.lines[0].values) == [None] * 10 + [1.0, 2.0]
    assert len(shown.moments) == 12
    one, other = trimmed([chart(young), chart(old)])
    assert len(one.moments) == len(other.moments) == 40
    (empty,) = trimmed([chart([None, None])])
    assert not empty.moments and draw(empty) is None
