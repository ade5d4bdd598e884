"""Tags of the pages about tasks."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasing import wording
from leasing.signs import Sign
from leasing.templatetags.leasing_ops import badge, deadline, moment
from tasks.models import AttemptOutcome, GeneratorWish, Task, TaskAttempt, TaskStatus, Worker
from tasks.signs import ATTEMPT_SIGNS, WORKER_SIGNS, task_sign

register = template.Library()


@register.simple_tag
def task_badge(task: Task, now: datetime) -> SafeString:
    """The sign of the state of ``task``."""
    return badge(task_sign(task, getattr(task, "now", now)))


@register.simple_tag
def task_when(task: Task, now: datetime) -> SafeString:
    """The moment that matters most in the state that ``task`` is in."""
    if task.status == TaskStatus.RUNNING:
        return deadline(task.expires_at, now, "ends")
    if task.status == TaskStatus.READY:
        if task.scheduled_at > now:
            return deadline(task.scheduled_at, now, "due", "due")
        return format_html("due {}", moment(task.scheduled_at, now))
    return format_html("ended {}", moment(task.processed_at, now))


@register.simple_tag
def worker_badge(worker: Worker) -> SafeString:
    """The sign of a worker that was read ``with_state()``."""
    return badge(WORKER_SIGNS[worker.state])  # type: ignore[attr-defined]


@register.simple_tag
def attempt_sign(attempt: TaskAttempt) -> Sign:
    """How ``attempt`` ended."""
    return ATTEMPT_SIGNS[AttemptOutcome(attempt.outcome)]


@register.simple_tag
def lasted(start: datetime, end: datetime) -> str:
    """How long it was from ``start`` to ``end``, with a tenth where it was short."""
    return _short(end - start)


@register.simple_tag
def heard_after(wish: GeneratorWish | None) -> str:
    """How long it took until the generator acknowledged ``wish``: "0.6 s"."""
    if wish is None or wish.acknowledged_at is None or wish.acknowledged_at < wish.changed_at:
        return ""
    return _short(wish.acknowledged_at - wish.changed_at)


def _short(length: timedelta) -> str:
    seconds = max(0.0, length.total_seconds())
    return f"{seconds:.1f} s" if seconds < 10 else wording.span(seconds)
