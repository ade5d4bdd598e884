"""The pages' menu, and which page shows a row. An app adds its own where it has its addresses,
so that leasing knows no other app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.db import DatabaseError
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse


@dataclass(frozen=True, order=True)
class Entry:
    """A place in the menu; ``place`` orders them."""

    place: int
    view: str
    label: str
    icon: str
    permission: str
    #: Names of views that lie behind this entry.
    inside: tuple[str, ...] = ()
    #: Returns True if there is anything behind it yet.
    is_used: Callable[[], bool] = field(default=lambda: True, compare=False)


_entries: dict[str, Entry] = {}
_row_views: dict[str, str] = {}
_shared_views: dict[str, str] = {}
_only_rows: dict[str, str] = {}
_holder_finders: list[Callable[[str], str]] = []


def add(*entries: Entry) -> None:
    """Put ``entries`` into the menu; one for each view."""
    _entries.update({entry.view: entry for entry in entries})


def add_row_page(label: str, view: str) -> None:
    """Rows of the model ``label`` ("leasing_tasks.task") are shown by ``view``, by primary key."""
    _row_views[label] = view


def add_shared_page(label: str, view: str, only: str = "") -> None:
    """Rows of the model ``label`` are shown by ``view``, all on one page. A model that has but one
    row gives it the name ``only``."""
    _shared_views[label] = view
    if only:
        _only_rows[label] = only


def add_holder_page(find: Callable[[str], str]) -> None:
    """Holders of leases are shown where ``find`` says: it returns the URL of a name, or nothing."""
    if find not in _holder_finders:
        _holder_finders.append(find)


def holder_url(name: str) -> str:
    """Return the URL of the page of the holder ``name``, if an app has one; else nothing."""
    return next(filter(None, (find(name) for find in _holder_finders if name)), "")


def name_of(label: str, key: str) -> str:
    """Return the name of the row of the model ``label`` with that key, as pages show it:
    "task:17", "queue reports"."""
    if label in _only_rows:
        return _only_rows[label]
    if label in _row_views:
        return f"{label.rpartition('.')[2]}:{key}"
    try:
        kind = str(apps.get_model(label)._meta.verbose_name)
    except (LookupError, ValueError):  # of an app that is gone
        kind = label
    return f"{kind} {key}"


def url_of(label: str, key: str) -> str:
    """Return the URL of the row of the model ``label`` with that key, if it still exists; else
    nothing."""
    try:
        if label in _shared_views:
            return reverse(_shared_views[label])
        return reverse(_row_views[label], args=[key])
    except (KeyError, NoReverseMatch):
        return ""


def row_url(row: Model) -> str:
    """Return the URL of ``row``: the page that was added for its model, else its
    ``get_absolute_url``, else nothing."""
    if row._meta.label_lower in _row_views:
        return url_of(row._meta.label_lower, str(row.pk))
    own = getattr(row, "get_absolute_url", None)
    return str(own()) if own else ""


def menu(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the menu of the user of ``request``, in order, of the pages that this site has
    mounted."""
    match = request.resolver_match
    here = f"{match.app_name}:{match.url_name}" if match else ""
    shown = []
    for entry in sorted(_entries.values()):
        if not request.user.has_perm(entry.permission):
            continue
        try:
            url = reverse(entry.view)
        except NoReverseMatch:
            continue
        current = "page" if here == entry.view else "true" if here in entry.inside else ""
        if not current and not _is_used(entry):
            continue
        shown.append({"entry": entry, "url": url, "current": current})
    return shown


def _is_used(entry: Entry) -> bool:
    try:
        return entry.is_used()
    except DatabaseError:  # the page that says what is missing has a menu too
        return False
