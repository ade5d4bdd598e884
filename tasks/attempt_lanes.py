"""The attempts of a task on an axis of time, with the waits between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from leasing.drawing import Drawing, Lane, Mark, Span, draw
from leasing.wording import span
from tasks.models import AttemptOutcome, Task, TaskAttempt, TaskStatus
from tasks.signs import ATTEMPT_SIGNS, task_sign

#: How many attempts a drawing shows.
MOST = 12


def drawing_of(task: Task, attempts: Sequence[TaskAttempt], now: datetime) -> Drawing:
    """The drawing of ``task`` at ``now``; ``attempts`` are its latest that did not end well, in
    whatever order."""
    ended = sorted(attempts, key=lambda attempt: attempt.pk)
    lanes = [_ended(attempt) for attempt in ended]
    if task.status in (TaskStatus.RUNNING, TaskStatus.SUCCEEDED) and task.acquired_at:
        lanes.append(_latest(task, now))
    is_whole = len(lanes) <= MOST and (not ended or ended[0].started_at == task.started_at)
    begun = task.created_at if is_whole and _is_near(task, lanes, now) else None
    shown = _with_waits(lanes[-MOST:], begun)
    if task.status == TaskStatus.READY and shown:
        shown[-1] = _with_the_wait_after(shown[-1], task, now)
    return draw(shown, now, left_out=len(lanes) > MOST)


def _ended(attempt: TaskAttempt) -> Lane:
    sign = ATTEMPT_SIGNS[AttemptOutcome(attempt.outcome)]
    lasted = span(attempt.ended_at - attempt.started_at)
    bar = Span(
        attempt.started_at, attempt.ended_at, sign.tone, f"{attempt.holder}: {sign.word}, {lasted}"
    )
    marks = []
    if attempt.refused_at is not None:
        title = f"Its late “{attempt.refused_verb}” was refused"
        marks.append(Mark(attempt.refused_at, "crit", title))
    return Lane(
        sign,
        f"Attempt {attempt.number}",
        attempt.holder,
        attempt.fencing_token,
        attempt.started_at,
        attempt.ended_at,
        f"late “{attempt.refused_verb}” refused" if marks else "",
        spans=[bar],
        marks=marks,
    )


def _latest(task: Task, now: datetime) -> Lane:
    """The attempt that runs, or that ended well."""
    assert task.acquired_at is not None
    sign = task_sign(task, now)
    end = task.processed_at
    bar = Span(task.acquired_at, end, sign.tone, f"{task.holder}: {sign.word}")
    return Lane(
        sign,
        f"Attempt {task.attempts}",
        task.holder,
        task.fencing_token,
        task.acquired_at,
        end,
        spans=[bar],
    )


def _is_near(task: Task, lanes: Sequence[Lane], now: datetime) -> bool:
    """Whether the wait before the first attempt leaves room for what came after."""
    if not lanes:
        return False
    first, last = lanes[0].start, lanes[-1].end or now
    return first - task.created_at <= 4 * (last - first)


def _with_waits(lanes: Sequence[Lane], begun: datetime | None) -> list[Lane]:
    """``lanes``, each with the wait before it."""
    shown = []
    before = begun
    for lane in lanes:
        if before is not None and before < lane.start:
            wait = Span(before, lane.start, "mute", f"Waited {span(lane.start - before)}", True)
            lane = replace(lane, spans=[wait, *lane.spans])
        shown.append(lane)
        before = lane.end
    return shown


def _with_the_wait_after(lane: Lane, task: Task, now: datetime) -> Lane:
    """``lane`` with the wait that follows it, which lasts."""
    assert lane.end is not None
    wait = Span(lane.end, max(now, task.scheduled_at), "mute", "Waits for another attempt", True)
    return replace(lane, spans=[*lane.spans, wait])
