"""Decide who may call the API: nobody without permission, unless the site says otherwise.

**Closed** (the default): a signed-in, active user who has the permission of the route. The
session's cookie says who it is; a request that changes something proves by Django's CSRF token
that the user meant it.

**Compatible**: as well, clients of the public sample service, which have no credentials, from
the networks in ``API_COMPATIBLE_HOSTS`` and nowhere else. By whom a request was sent is judged
by the connection's own address. Behind a proxy on this machine everyone would come from
loopback, so a request that says it was forwarded is refused (a proxy that adds no such header
cannot be told from a client: this mode is for sites without one); so is one that a browser
sends for a page of another site. A user who is signed in is judged as in the closed mode, here
too.

A site that is **read-only** refuses every request that would change something, from
every client: workers that work over HTTP, too.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.utils import check_csrf

from leasing.conf import leasing_settings
from leasing.web.access import READ_ONLY, is_read_only

SAFE = ("GET", "HEAD", "OPTIONS")
FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")


class Access:
    """Lets those through who have ``permission``; give it to a route as its ``auth``.

    Raises HttpError: 401 for nobody, 403 for the wrong one.
    """

    def __init__(self, permission: str) -> None:
        self.permission = permission

    def __call__(self, request: HttpRequest) -> str:
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            self._check_user(request, user)
        elif leasing_settings.API_ACCESS == "compatible":
            _check_stranger(request)
        else:
            raise HttpError(401, "Sign in first.")
        if request.method not in SAFE and is_read_only():
            raise HttpError(403, READ_ONLY)
        return caller(request)

    def _check_user(self, request: HttpRequest, user: Any) -> None:
        if not _has(user, self.permission):
            raise HttpError(403, f"You do not have the permission {self.permission}.")
        if check_csrf(request) is not None:
            raise HttpError(403, "The CSRF token is missing or wrong (header X-CSRFToken).")

    @property
    def openapi_security_schema(self) -> dict[str, str]:
        """The cookie, for the OpenAPI document."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "The session of a signed-in user. Requests that change something must "
            "send the CSRF token in X-CSRFToken. The compatible mode requires neither.",
        }


def may(request: HttpRequest, permission: str) -> bool:
    """Return True if the client of ``request``, whom its route has let in, has ``permission``;
    one without credentials, in the compatible mode, has every one."""
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return _has(user, permission)
    return leasing_settings.API_ACCESS == "compatible"


def _has(user: Any, permission: str) -> bool:
    return bool(user.is_active and user.has_perm(permission))


def caller(request: HttpRequest) -> str:
    """Under what name the ledgers remember who sent ``request``."""
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return str(user.get_username())
    return f"a client at {request.META.get('REMOTE_ADDR', '')}"


def _check_stranger(request: HttpRequest) -> None:
    if not _is_near(request.META.get("REMOTE_ADDR", "")):
        raise HttpError(403, "Requests without credentials are not accepted from this address.")
    if any(name in request.headers for name in FORWARDED):
        raise HttpError(403, "Requests without credentials are not accepted through a proxy.")
    # Asked for each request, since it also refuses names that are not ours: a page of another
    # site may have its own name point here.
    host = request.get_host()
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise HttpError(403, "Requests without credentials are not accepted from other sites.")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise HttpError(403, "Requests without credentials are not accepted from other sites.")


def _is_near(address: str) -> bool:
    try:
        client = ipaddress.ip_address(address)
    except ValueError:
        return False
    client = getattr(client, "ipv4_mapped", None) or client
    networks = map(ipaddress.ip_network, leasing_settings.API_COMPATIBLE_HOSTS)
    return any(client in network for network in networks)
