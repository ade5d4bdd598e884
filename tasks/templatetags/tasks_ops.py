"""Tags of the pages about tasks."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasing import humanize
from leasing.templatetags.leasing_ops import badge, deadline, moment
from leasing.web.badges import Badge
from tasks.dashboard.badges import ATTEMPT_BADGES, EVENT_BADGES, badge_of_task, badge_of_worker
from tasks.dashboard.charts import Chart
from tasks.dashboard.line_chart import draw, format_value
from tasks.dashboard.listing import short_payload
from tasks.diagnosis.facts import progress_of, progress_words
from tasks.diagnosis.trace import Event
from tasks.models import (
    AttemptOutcome,
    GeneratorDesiredState,
    Task,
    TaskAttempt,
    TaskStatus,
    Worker,
)

register = template.Library()
register.filter("format_value", format_value)
register.filter("short_payload", short_payload)
register.simple_tag(draw, name="drawn")

#: The longest time to an acknowledgement by the process that was holding the lease; a later one
#: came with another holder.
HEARD_SOON = timedelta(minutes=1)


@register.simple_tag
def task_badge(task: Task, now: datetime) -> SafeString:
    """Return the badge of the state of ``task``."""
    return badge(badge_of_task(task, getattr(task, "now", now)))


@register.simple_tag
def task_when(task: Task, now: datetime) -> SafeString:
    """Return the moment that matters most in the state of ``task``."""
    if task.status == TaskStatus.RUNNING:
        if task.expires_at <= now:
            return deadline(task.expires_at, now, past="lease expired")
        return format_html("running for {}", moment(task.acquired_at, now, lasts=True))
    if task.status == TaskStatus.READY:
        if task.scheduled_at > now:
            return deadline(task.scheduled_at, now, "due", "due")
        return format_html("due {}", moment(task.scheduled_at, now))
    return format_html("ended {}", moment(task.processed_at, now))


@register.simple_tag
def worker_badge(worker: Worker) -> SafeString:
    """Return the badge of a worker that was read ``with_state()``."""
    return badge(badge_of_worker(worker))


@register.filter
def latest_rows(chart: Chart) -> list[tuple[datetime, list[float | None]]]:
    """Return the table of ``chart``, the latest first, without the times that have no value."""
    return [row for row in reversed(chart.rows) if any(value is not None for value in row[1])]


@register.filter
def clock(value: datetime) -> str:
    """Return the time of day of ``value`` in the current time zone."""
    return timezone.localtime(value).strftime(humanize.TIME)


@register.simple_tag
def attempt_badge(attempt: TaskAttempt) -> Badge:
    """Return the badge of ``attempt``."""
    return ATTEMPT_BADGES[AttemptOutcome(attempt.outcome)]


@register.simple_tag
def event_badge(event: Event) -> Badge:
    """Return the badge of ``event``; an operator's action has its own name."""
    return EVENT_BADGES.get(event.event) or Badge(event.event, "info", "key", "!")


@register.simple_tag
def progress_line(task: Task) -> str:
    """Return the progress of ``task``: "3 of 10"."""
    return progress_words(task) or "In progress"


@register.simple_tag
def progress_bar(task: Task, tone: str = "info") -> SafeString | str:
    """Return the reported progress of ``task`` as a bar; "" if it reported no total."""
    done, total = progress_of(task)
    if done is None or not total:
        return ""
    share = max(0.0, min(100.0, 100 * (done / total)))
    return format_html(
        '<svg class="remaining tone-{}" role="img" aria-label="{} % done">'
        '<rect width="{}%" height="100%" rx="3"/></svg>',
        tone,
        round(share),
        f"{share:.1f}",
    )


@register.simple_tag
def lasted(start: datetime, end: datetime) -> str:
    """Return the time from ``start`` to ``end``, with a tenth where it was short."""
    return humanize.brief(end - start)


@register.simple_tag
def heard_after(desired: GeneratorDesiredState | None) -> str:
    """Return the time until the generator acknowledged ``desired``: "0.6 s"; "" if it took
    long: then another process had got the lease meanwhile."""
    if (
        desired is None
        or desired.acknowledged_at is None
        or desired.acknowledged_at < desired.changed_at
    ):
        return ""
    heard_in = desired.acknowledged_at - desired.changed_at
    return humanize.brief(heard_in) if heard_in < HEARD_SOON else ""
