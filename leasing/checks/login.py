"""System check: visitors of the pages for operators can sign in.

In a new project LOGIN_URL is an address that nothing serves: the first visit of a page ends with
404, and the page seems to be missing. The login of the admin refuses users who are not staff, and
an operator need not be staff.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, Resolver404, get_script_prefix, resolve, reverse
from django.utils import translation

#: A page of each URLconf of this distribution.
PAGES = ("leasing:list", "leasing_tasks:overview")
#: Our own page to sign in.
OURS = "leasing:login"


@register(Tags.urls)
def check_login_url(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> Iterator[CheckMessage]:
    """Report a LOGIN_URL that nothing of this site serves, or that admits staff alone, if the site
    has our pages."""
    if not getattr(settings, "ROOT_URLCONF", None) or not any(map(_address, PAGES)):
        return
    needs = "" if _address(OURS) else ', which needs path("ops/", include("leasing.urls"))'
    fix = f'Set LOGIN_URL = "{OURS}"{needs}'
    view = _served()
    if view is None:
        yield Warning(
            "Nobody can sign in to the pages of leases and tasks: LOGIN_URL is "
            f"{str(settings.LOGIN_URL)!r}, which no URL pattern of this site matches.",
            hint=f"{fix}, or name a page of your own. If another server answers there, silence "
            "this check.",
            id="leasing.W009",
        )
    elif view == "admin:login":
        yield Warning(
            "Operators who are not staff cannot sign in to the pages of leases and tasks: "
            f"LOGIN_URL is {str(settings.LOGIN_URL)!r}, the login of the admin.",
            hint=f"{fix}. If all operators are staff, silence this check.",
            id="leasing.W010",
        )


def _served() -> str | None:
    """Return the name of the view that LOGIN_URL leads to, "" if it cannot be known; None if there
    is none."""
    try:
        address = urlsplit(resolve_url(settings.LOGIN_URL))
    except NoReverseMatch:
        return None
    if address.netloc or not address.path.startswith("/"):
        return ""  # on another host, or relative to each page
    path = f"/{address.path.removeprefix(get_script_prefix())}"
    # Of language prefixes, only that of the active language resolves.
    language = translation.get_language_from_path(path) or translation.get_language()
    with translation.override(language):
        found = _view_of(path)
        return _view_of(f"{path}/") if found is None and settings.APPEND_SLASH else found


def _view_of(path: str) -> str | None:
    try:
        match = resolve(path)
    except Resolver404:
        return None
    return f"{match.app_name}:{match.url_name}"


def _address(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
