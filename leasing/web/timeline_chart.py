"""Bars on an axis of time, as numbers for a template: what happened when, seen at a glance.

Everything stands in per cent of the width, so that a drawing is as wide as there is room and
its words stay as large as they are. Its template draws it without any style of its own, and
tells the same in a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from leasing import humanize
from leasing.humanize import DATE, TIME, TIME_TO_MINUTE
from leasing.web.badges import Badge

#: The width of the shortest bar, so that it can be seen.
NARROWEST = 0.7
#: The shortest time that a drawing shows: its axis needs some moments.
SHORTEST = timedelta(seconds=3)
#: The greatest number of labelled moments on the axis, approximately.
TICKS = 6
#: Distances between ticks, in seconds.
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
DAY = 86_400


@dataclass(frozen=True)
class Span:
    """A stretch of time. A thin one is a wait."""

    start: datetime
    #: None: it lasts.
    end: datetime | None
    tone: str
    title: str
    thin: bool = False


@dataclass(frozen=True)
class Mark:
    """A moment."""

    at: datetime
    tone: str
    title: str


@dataclass(frozen=True)
class Shape:
    """A span or a mark in its place; ``x`` and ``width`` in per cent."""

    x: str
    width: str
    tone: str
    title: str
    kind: str


@dataclass(frozen=True)
class Track:
    """One line of a drawing: what it is about, and what happened in it."""

    badge: Badge
    title: str
    who: str
    token: int
    start: datetime
    #: None: it lasts.
    end: datetime | None
    note: str = ""
    #: Stands next to the title, where it is not said elsewhere.
    aside: str = ""
    spans: Sequence[Span] = ()
    marks: Sequence[Mark] = ()
    #: The spans and marks in their places, once it is drawn.
    shapes: Sequence[Shape] = field(default=(), compare=False)

    @property
    def lasted(self) -> str:
        """Return the duration; "" while it is not over."""
        return humanize.brief(self.end - self.start) if self.end else ""


@dataclass(frozen=True)
class Tick:
    """A moment on the axis. Every second one is left out where there is little room."""

    x: str
    label: str
    anchor: str
    is_spare: bool


@dataclass(frozen=True)
class Drawing:
    """Tracks with their shapes, the earliest first, and the axis below them.

    It is the same drawing while only its bars have grown with the time.
    """

    tracks: list[Track] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list, compare=False)
    #: The position of now; "" when the drawing ends before.
    now: str = field(default="", compare=False)
    #: Tracks that are left out because there are so many.
    left_out: bool = False

    def __bool__(self) -> bool:
        return bool(self.tracks)


def draw(tracks: Sequence[Track], now: datetime, *, left_out: bool = False) -> Drawing:
    """Put tracks on one axis.

    Args:
        tracks: The tracks, from the top.
        now: The moment at which the axis ends if one of them lasts until then.
        left_out: True if there are earlier tracks that are not drawn.
    """
    moments = list(_moments(tracks, now))
    if not moments:
        return Drawing()
    begin, end = min(moments), max(moments)
    end = max(end, begin + SHORTEST)
    scale = _Scale(begin, end)
    lasts = any(track.end is None for track in tracks)
    return Drawing(
        [replace(track, shapes=_shapes(track, scale, now)) for track in tracks],
        list(_ticks(scale)),
        now=scale.place(now) if lasts and begin <= now <= end else "",
        left_out=left_out,
    )


@dataclass(frozen=True)
class _Scale:
    begin: datetime
    end: datetime

    def share(self, moment: datetime) -> float:
        """Return the position of ``moment``, with a little room on both sides."""
        share = (moment - self.begin) / (self.end - self.begin)
        return 1 + 98 * min(1.0, max(0.0, share))

    def place(self, moment: datetime) -> str:
        return f"{self.share(moment):.2f}%"


def _moments(tracks: Sequence[Track], now: datetime) -> Iterable[datetime]:
    for track in tracks:
        for span in track.spans:
            yield from (span.start, span.end or now)
        for mark in track.marks:
            yield mark.at


def _shapes(track: Track, scale: _Scale, now: datetime) -> list[Shape]:
    shapes = []
    for span in track.spans:
        start, end = scale.share(span.start), scale.share(span.end or now)
        width = end - start if span.thin else max(NARROWEST, end - start)
        start = min(start, 99 - width)
        kind = "wait" if span.thin else "bar"
        shapes.append(Shape(f"{start:.2f}%", f"{width:.2f}%", span.tone, span.title, kind))
    for mark in track.marks:
        shapes.append(Shape(scale.place(mark.at), "", mark.tone, mark.title, "mark"))
    return shapes


def _ticks(scale: _Scale) -> Iterable[Tick]:
    length = (scale.end - scale.begin).total_seconds()
    most = TICKS if length <= DAY else TICKS // 2  # with their dates they are wider
    step = next((step for step in STEPS if length / step <= most), 0)
    if not step:
        step = DAY * max(1, math.ceil(length / DAY / most))
    zone = timezone.get_current_timezone()
    first = scale.begin.timestamp() // step * step
    moments = [first + step * number for number in range(int(length / step) + 2)]
    shown = [m for m in moments if scale.begin.timestamp() <= m <= scale.end.timestamp()]
    for number, moment in enumerate(shown):
        local = datetime.fromtimestamp(moment, UTC).astimezone(zone)
        share = scale.share(local)
        anchor = "start" if share < 8 else "end" if share > 92 else "middle"
        yield Tick(f"{share:.2f}%", _label(local, step, length), anchor, number % 2 == 1)


def _label(moment: datetime, step: int, length: float) -> str:
    if step >= DAY:
        return moment.strftime(DATE)
    if length > DAY:
        return moment.strftime(f"{DATE} {TIME_TO_MINUTE}")
    return moment.strftime(TIME_TO_MINUTE if step >= 60 else TIME)
