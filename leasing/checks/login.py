"""System check: visitors of the pages for operators can sign in.

In a new project LOGIN_URL is an address that nothing serves: the first visit of a page ends with
404, and the page seems to be missing.
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


@register(Tags.urls)
def check_login_url(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> Iterator[CheckMessage]:
    """Report a LOGIN_URL that nothing of this site serves, if it has our pages."""
    if not getattr(settings, "ROOT_URLCONF", None) or not any(map(_address, PAGES)):
        return
    if _is_served():
        return
    needs = "" if _address("admin:index") else ', which needs path("admin/", admin.site.urls)'
    yield Warning(
        "Nobody can sign in to the pages of leases and tasks: LOGIN_URL is "
        f"{str(settings.LOGIN_URL)!r}, which no URL pattern of this site matches.",
        hint=f'Set LOGIN_URL = "admin:login" to sign in at the admin{needs}, or name a page of '
        "your own. If another server answers there, silence this check.",
        id="leasing.W009",
    )


def _is_served() -> bool:
    try:
        address = urlsplit(resolve_url(settings.LOGIN_URL))
    except NoReverseMatch:
        return False
    if address.netloc or not address.path.startswith("/"):
        return True  # another host, or relative to each page: it cannot be checked
    path = f"/{address.path.removeprefix(get_script_prefix())}"
    # Of prefixes that are languages only that of the active one resolves.
    language = translation.get_language_from_path(path) or translation.get_language()
    with translation.override(language):
        return _resolves(path) or (settings.APPEND_SLASH and _resolves(f"{path}/"))


def _resolves(path: str) -> bool:
    try:
        resolve(path)
    except Resolver404:
        return False
    return True


def _address(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
