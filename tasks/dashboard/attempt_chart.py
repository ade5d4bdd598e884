"""The attempts of a task on an axis of time, with the waits between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leasing.humanize import span
from leasing.web.badges import Badge
from leasing.web.timeline_chart import Drawing, Mark, Span, Track, draw
from tasks.dashboard.badges import ATTEMPT_BADGES, STUCK, SUCCEEDED, badge_of_task
from tasks.dashboard.timeline import AttemptSpan, Timeline
from tasks.models import AttemptOutcome, Task

#: Attempts that a drawing shows at most.
MAX_ATTEMPTS_DRAWN: Final = 12
#: The wait before the first attempt is left out when it is this many times as long as the rest.
TOO_LONG: Final = 4


def drawing_of(task: Task, timeline: Timeline) -> Drawing:
    """The drawing of the latest attempts of ``task``."""
    tracks: list[Track] = []
    wait: AttemptSpan | None = None
    for attempt_span in timeline.spans:
        if attempt_span.kind == "wait":
            wait = attempt_span
            continue
        is_drawn = wait is not None and (tracks or _leaves_room(wait, timeline))
        before = [_wait(wait, timeline)] if wait is not None and is_drawn else []
        track = _attempt(attempt_span, _badge(attempt_span, task, timeline))
        tracks.append(replace(track, spans=[*before, *track.spans]))
        wait = None
    if tracks and wait is not None:
        tracks[-1] = replace(tracks[-1], spans=[*tracks[-1].spans, _wait(wait, timeline)])
    left_out = timeline.has_more or len(tracks) > MAX_ATTEMPTS_DRAWN
    return draw(tracks[-MAX_ATTEMPTS_DRAWN:], timeline.now, left_out=left_out)


def _leaves_room(wait: AttemptSpan, timeline: Timeline) -> bool:
    """Return True if the ``wait`` before the first attempt leaves room for what came after."""
    began = wait.ended_at or timeline.now
    ended = max((each.ended_at or timeline.now for each in timeline.attempts), default=began)
    return began - wait.began_at <= TOO_LONG * (ended - began)


def _wait(wait: AttemptSpan, timeline: Timeline) -> Span:
    end = wait.ended_at
    if end is not None:
        return Span(wait.began_at, end, "mute", f"Waited {span(end - wait.began_at)}", thin=True)
    if wait.due_at is not None and wait.due_at > timeline.now:
        end = wait.due_at
    return Span(wait.began_at, end, "mute", "Waiting for the next attempt", thin=True)


def _attempt(attempt: AttemptSpan, badge: Badge) -> Track:
    end = attempt.ended_at
    lasted = f", {span(end - attempt.began_at)}" if end else ""
    bar = Span(attempt.began_at, end, badge.tone, f"{attempt.holder}: {badge.word}{lasted}")
    marks, note = [], ""
    if attempt.refused_at is not None:
        note = f"a late {attempt.refused_report} was refused"
        marks.append(Mark(attempt.refused_at, "crit", note.capitalize()))
    return Track(
        badge,
        f"Attempt {attempt.number}",
        attempt.holder,
        attempt.fencing_token,
        attempt.began_at,
        end,
        note,
        spans=[bar],
        marks=marks,
    )


def _badge(attempt: AttemptSpan, task: Task, timeline: Timeline) -> Badge:
    match attempt.outcome:
        case "running":
            return badge_of_task(task, timeline.now)
        case "overdue":
            return STUCK
        case "succeeded":
            return SUCCEEDED
        case outcome:
            return ATTEMPT_BADGES[AttemptOutcome(outcome)]
