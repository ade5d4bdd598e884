"""Write names, badges and links in the admin of leasing and tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from leasing.templatetags.leasing_ops import pretty_json
from leasing.web.badges import Badge
from leasing.web.masking import masked

#: Characters of a name that a list shows.
SHOWN = 40


def short(text: str) -> str:
    """``text``, short enough for a column of a list; its page has all of it."""
    return Truncator(text).chars(SHOWN)


def site_url(view: str, *args: Any) -> str | None:
    """Return the URL of the operator's page for a row, if the pages are mounted: for "view on
    site"."""
    try:
        return reverse(view, args=args) if view else None
    except NoReverseMatch:
        return None


def badge_text(badge: Badge) -> SafeString:
    """The badge of a state, as text: the mark stands for the icon."""
    return format_html(
        '<span class="leasing-badge leasing-{}"><span aria-hidden="true">{}</span> {}</span>',
        badge.tone,
        badge.mark,
        badge.word,
    )


def link(text: object, view: str, *args: Any, query: str = "") -> SafeString | str:
    """Return a link to a page of the admin, or its text alone where there is no such page.

    Args:
        text: The text of the link.
        view: The name of the page's URL.
        args: The arguments of that URL.
        query: What follows the path, with its question mark.
    """
    try:
        url = reverse(view, args=[quote(arg) for arg in args])
    except NoReverseMatch:
        return str(text)
    return format_html('<a href="{}{}">{}</a>', url, query, text)


def related(
    request: HttpRequest, text: str, model: type[Model], which: dict[str, Any] | int | str
) -> SafeString | str:
    """Return a link to a row, or to a list of rows; its text alone for a user who may not see them.

    Args:
        request: The request of the user.
        text: The text of the link.
        model: The model of the rows.
        which: The key of the row, or the filter of the list.
    """
    meta = model._meta
    if not request.user.has_perm(f"{meta.app_label}.view_{meta.model_name}"):
        return text
    name = f"admin:{meta.app_label}_{meta.model_name}"
    if isinstance(which, dict):
        return link(text, f"{name}_changelist", query="?" + urlencode(which))
    return link(text, f"{name}_change", which)


def json_of(value: Any) -> SafeString | str:
    """``value`` as indented JSON, its secrets masked."""
    if value is None:
        return "–"
    return format_html(
        '<pre class="leasing-json" tabindex="0">{}</pre>', pretty_json(masked(value))
    )


def column(
    description: str, show: Callable[[Any], SafeString | str], ordering: str | None = None
) -> Callable[[Any, Any], SafeString | str]:
    """Return a method of an admin that is a column of its list and its form.

    Args:
        description: The heading.
        show: Returns the contents for a row.
        ordering: The column by which a click on the heading sorts; None: it does not.
    """

    @admin.display(description=description, ordering=ordering)
    def shown(site: Any, row: Any) -> SafeString | str:
        return show(row)

    return shown


def badge_column(
    badge_of: Callable[[Any], Badge], description: str = "state"
) -> Callable[[Any, Any], SafeString | str]:
    """Return a column with the badge that ``badge_of`` returns for a row."""
    return column(description, lambda row: badge_text(badge_of(row)))


def short_column(name: str, ordering: str | None = None) -> Callable[[Any, Any], SafeString | str]:
    """Return a column with the attribute ``name`` of a row, shortened."""
    return column(name, lambda row: short(getattr(row, name)), ordering)


def json_column(name: str, description: str = "") -> Callable[[Any, Any], SafeString | str]:
    """Return a column with the attribute ``name`` of a row as JSON."""
    return column(description or name, lambda row: json_of(getattr(row, name)))
