"""Bars on an axis of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from leasing.web.badges import ACTIVE
from leasing.web.timeline_chart import NARROWEST, Drawing, Mark, Span, Track, draw

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def track(*spans: tuple[float, float | None], marks: tuple[float, ...] = ()) -> Track:
    """A lane with bars from and to so many seconds after noon."""
    return Track(
        ACTIVE,
        "Term 1",
        "dora",
        1,
        at(spans[0][0]),
        None if spans[-1][1] is None else at(spans[-1][1]),
        spans=[Span(at(a), None if b is None else at(b), "ok", "") for a, b in spans],
        marks=[Mark(at(each), "crit", "") for each in marks],
    )


def places(drawing: Drawing) -> list[list[tuple[float, float]]]:
    """Return the begin and the width of each shape, in per cent, for each track."""
    return [
        [(float(s.x.rstrip("%")), float(s.width.rstrip("%") or 0)) for s in track.shapes]
        for track in drawing.tracks
    ]


def test_bars_stand_on_one_axis() -> None:
    drawing = draw([track((0, 50)), track((50, 100), marks=(75,))], at(200))
    assert places(drawing) == [[(1, 49)], [(50, 49), (74.5, 0)]]
    assert drawing.now == ""


def test_what_lasts_reaches_to_now() -> None:
    drawing = draw([track((0, None))], at(10))
    assert places(drawing) == [[(1, 98)]]
    assert drawing.now == "99.00%"


def test_the_shortest_bar_is_to_be_seen_and_stays_inside() -> None:
    drawing = draw([track((0, 0)), track((86_400, 86_400.01))], at(0))
    (first,), (last,) = places(drawing)
    assert first == (1, NARROWEST)
    assert last[1] == NARROWEST and last[0] + last[1] <= 99


@pytest.mark.parametrize("length", [0, 0.3, 1, 7, 59, 61, 600, 5_000, 86_399, 86_401, 1e6, 1e8])
def test_an_axis_of_any_length_names_a_few_moments(length: float) -> None:
    ticks = draw([track((0.2, 0.2 + length))], NOON).ticks
    assert len(ticks) <= 7 and (ticks or length < 1)
    assert all(1 <= float(tick.x.rstrip("%")) <= 99 for tick in ticks)
    assert len({tick.label for tick in ticks}) == len(ticks)


def test_nothing_is_drawn_of_nothing() -> None:
    assert not draw([], NOON)


def test_a_bar_that_only_grows_makes_no_other_drawing() -> None:
    early, late = (draw([track((0, None))], at(second)) for second in (10, 20))
    assert early == late and early.ticks != late.ticks
    assert draw([track((0, 9))], at(10)) != early
