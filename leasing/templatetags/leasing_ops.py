"""Tags of the operator's pages: times that tick, badges, icons, the menu."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.db.models import Model
from django.template.context import RequestContext
from django.urls import NoReverseMatch, reverse
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from leasing import humanize
from leasing.models import Leasable
from leasing.runtime.terminal import label
from leasing.web import navigation
from leasing.web.access import is_live, why_not
from leasing.web.badges import Badge, badge_of_lease

register = template.Library()

#: Signs after which a name may go on in the next line; never inside of an escape.
_PARTING = re.compile(r"([._:/@-])(?=\w)")

#: Names of tasks in a sentence, which link their pages.
_TASKS = re.compile(r"\b(task:[0-9]{1,18})\b")

#: Strings of JSON, and marks of scripts that run from right to left.
_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")')
_LEFTWARD = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")

#: Longer JSON than this is cut: a browser would choke on it, and nobody reads it there.
JSON_SHOWN = 50_000


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """The symbol ``name`` of icons.svg; decoration unless a ``label`` gives it a meaning."""
    if label:
        return format_html(
            '<svg class="icon" role="img" aria-label="{}"><use href="#i-{}"/></svg>', label, name
        )
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
def badge(badge: Badge) -> SafeString:
    """The ``badge`` of a state."""
    return format_html(
        '<span class="badge tone-{}">{}{}</span>', badge.tone, icon(badge.icon), badge.word
    )


@register.simple_tag
def holder(name: str, url: str) -> SafeString:
    """The ``name`` of a holder, which links the page at ``url`` where there is one."""
    shown = format_html("<bdi>{}</bdi>", name)
    return format_html('<a href="{}">{}</a>', url, shown) if url else shown


@register.simple_tag
def lease_badge(row: Leasable, now: datetime) -> SafeString:
    """The badge of the lease of ``row``, at the time it was read or else at ``now``."""
    return badge(badge_of_lease(row, getattr(row, "now", now)))


@register.simple_tag
def lease_end(row: Leasable, now: datetime, ahead: str = "") -> SafeString:
    """Show until when ``row`` is held, or since when it no longer is.

    Args:
        row: The leased row.
        now: The database's clock.
        ahead: The word before a deadline that has not passed.
    """
    if not row.grants:
        return _nothing()
    if row.released_at is not None:
        return format_html('<span class="end">ended {}</span>', moment(row.released_at, now))
    return deadline(row.expires_at, now, ahead)


@register.simple_tag
def remaining_bar(row: Leasable, now: datetime, tone: str = "ok") -> SafeString:
    """Show the remaining part of the ttl of an active row as a bar that shrinks.

    Args:
        row: The leased row.
        now: The database's clock.
        tone: The colour of the bar: that of a badge.
    """
    share = max(0.0, min(100.0, 100 * ((row.expires_at - now) / row.ttl)))
    return format_html(
        '<svg class="remaining tone-{}" role="img" aria-label="{} % of the lease time left">'
        '<rect width="{}%" height="100%" rx="3" data-until="{}" data-ttl="{}"/></svg>',
        tone,
        round(share),
        f"{share:.1f}",
        row.expires_at.isoformat(timespec="milliseconds"),
        f"{row.ttl.total_seconds():.3f}",
    )


@register.simple_tag
def moment(value: datetime | None, now: datetime, *, lasts: bool = False) -> SafeString:
    """Show the distance of ``value`` from now, with the exact time as a tooltip. Of what ``lasts``
    since then the bare time."""
    if value is None:
        return _nothing()
    return format_html(
        '<time datetime="{}" title="{}" data-moment="{}">{}</time>',
        value.isoformat(timespec="milliseconds"),
        humanize.stamp(value),
        "lasts" if lasts else "",
        humanize.Moment(value, lasts=lasts).words(now),
    )


register.simple_tag(why_not)
register.simple_tag(humanize.stamp)


@register.simple_tag
def exactly(value: datetime | None, now: datetime) -> SafeString:
    """``value`` as date and time, and how long ago it is."""
    if value is None:
        return _nothing()
    return format_html(
        '<span class="whole">{}</span> <span class="aside">{}</span>',
        humanize.stamp(value),
        moment(value, now),
    )


@register.simple_tag
def deadline(
    value: datetime | None, now: datetime, ahead: str = "", past: str = "expired"
) -> SafeString:
    """Show a countdown to a moment: "ends in 3 s", and once it has passed "expired 3 s ago".

    Args:
        value: The moment; None: a dash.
        now: The database's clock.
        ahead: The word before it, until it passes.
        past: The word before it, once it has passed.
    """
    if value is None:
        return _nothing()
    return format_html(
        '<time datetime="{}" title="{}" data-deadline="{}" data-past="{}">{}</time>',
        value.isoformat(timespec="milliseconds"),
        humanize.stamp(value),
        ahead,
        past,
        humanize.until(value, now, ahead, past),
    )


@register.simple_tag
def sentence(text: str, now: datetime) -> SafeString:
    """Show ``text``; the moments of a ``humanize.Sentence`` tick."""
    parts = getattr(text, "parts", [text])
    return format_html_join("", "{}", ([_part(part, now)] for part in parts))


def _part(part: str | humanize.Moment, now: datetime) -> str:
    if isinstance(part, str):
        return format_html_join("", "{}", ([_row(text)] for text in _TASKS.split(part)))
    return (
        moment(part.at, now, lasts=part.lasts)
        if part.past is None
        else deadline(part.at, now, "", part.past)
    )


def _row(text: str) -> str:
    """Return ``text``, as a link where it is the name of a task."""
    url = _TASKS.fullmatch(text) and navigation.url_of("leasing_tasks.task", text[len("task:") :])
    return format_html('<a href="{}">{}</a>', url, text) if url else text


@register.simple_tag
def fact(value: Any, now: datetime) -> SafeString | str:
    """A value of an explanation: a moment ticks, anything else is text."""
    if isinstance(value, datetime):
        return deadline(value, now) if value > now else moment(value, now)
    if isinstance(value, timedelta):
        return humanize.span(value)
    if isinstance(value, humanize.Sentence):
        return sentence(value, now)
    return "–" if value in (None, "") else str(value)


@register.filter
def breakable(name: str) -> SafeString:
    """``name``, which may be long and without spaces, with places to break the line: after the
    signs that part names, and nowhere in a word while there is another way."""
    return mark_safe(_PARTING.sub("\\1<wbr>", conditional_escape(name)))


register.filter("label", label)
register.filter("span", humanize.span)
register.filter("brief", humanize.brief)
register.filter("plural", humanize.plural)


@register.filter
def thousands(count: int) -> str:
    """``count`` with its thousands apart."""
    return f"{count:,}"


@register.filter
def pretty_json(value: Any) -> str:
    """``value`` as indented JSON. Strings in a script that runs from right to left are isolated,
    or a name and its value would change places."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) > JSON_SHOWN:
        text = f"{text[:JSON_SHOWN]}\n… truncated: {len(text) - JSON_SHOWN:,} more characters"
    if not _LEFTWARD.search(text):
        return text  # which the template escapes
    return format_html_join(
        "",
        "{}",
        (
            [format_html("<bdi>{}</bdi>", part) if _LEFTWARD.search(part) else part]
            for part in _STRINGS.split(text)
        ),
    )


@register.simple_tag(takes_context=True)
def menu(context: RequestContext) -> list[dict[str, Any]]:
    """The entries of the menu that this user may open."""
    return navigation.menu(context["request"]) if "request" in context else []


@register.simple_tag(takes_context=True)
def live(context: RequestContext) -> bool:
    """Return True if the page is rendered for a poll, which wants it without its frame."""
    return "request" in context and is_live(context["request"])


@register.simple_tag
def address(*names: str) -> str:
    """The address of the first of ``names`` that this site has mounted, else nothing."""
    for name in names:
        try:
            return reverse(name)
        except NoReverseMatch:
            continue
    return ""


@register.simple_tag(takes_context=True)
def in_admin(context: RequestContext, row: Model | None) -> SafeString | str:
    """Show a link to ``row`` in Django's admin, if the user may see it there; else nothing."""
    request = context.get("request")
    if request is None or row is None or not getattr(request.user, "is_staff", False):
        return ""
    app, name = row._meta.app_label, row._meta.model_name
    try:
        url = reverse(f"admin:{app}_{name}_change", args=[row.pk])
    except NoReverseMatch:
        return ""
    if not request.user.has_perm(f"{app}.view_{name}"):
        return ""
    return format_html('<a class="aside" href="{}">Open in admin</a>', url)


def _nothing() -> SafeString:
    return format_html('<span class="aside">{}</span>', "–")
