"""Decide who may call the API: nobody without permission, unless the site says otherwise.

**Closed** (the default): the API accepts a signed-in, active user who has the permission of the
route, or a token with that permission among its scopes. The session cookie identifies the user; in
a request that changes something, Django's CSRF token proves that the user intended it. A token
comes in a header that no page of another site can make a browser send, so a request with a token
is judged by the token alone, whatever cookies come with it.

**Compatible**: the API also accepts clients of the public sample service, which have no
credentials, but only from the networks in ``API_COMPATIBLE_HOSTS``. The client's address is that of
the connection; behind a proxy that ``API_TRUSTED_PROXIES`` names, it is the address that called the
proxy (see ``leasing.api.networks``). A request without credentials is refused if any other proxy
forwarded it: behind a proxy on this machine, every client would seem to come from loopback. (A
proxy that adds no header cannot be distinguished from a client: this mode is not for sites behind
such a proxy.) A request without credentials is also refused if a browser sends it for a page of
another site. A request with a session or a token is judged as in the closed mode.

A site that is **read-only** refuses every request that would change something, from every client,
including workers that use HTTP.
"""

from __future__ import annotations

from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.utils import check_csrf

from leasing.api.networks import client_address, is_forwarded, is_in
from leasing.api.principals import Principal, Token, User, let_in, principal_of
from leasing.conf import leasing_settings
from leasing.models import ApiToken
from leasing.models.api_token import add_scope
from leasing.validation.names import STRANGER
from leasing.web.access import READ_ONLY, is_read_only

SAFE = ("GET", "HEAD", "OPTIONS")
#: The same text for missing and for wrong credentials: a difference would help those who guess.
UNKNOWN = "Sign in, or send a valid token."


def scope(permission: str) -> str:
    """Register ``permission`` as a scope that tokens can have, and return it. ``Access`` registers
    the permission of a route."""
    add_scope(permission)
    return permission


class Access:
    """Admits clients that have ``permission``; pass it to a route as its ``auth``.

    A token has the permission if it has a scope of the same name. Raises HttpError: 401 without
    valid credentials, 403 for a client that may not do this.
    """

    def __init__(self, permission: str) -> None:
        self.permission = scope(permission)

    def __call__(self, request: HttpRequest) -> Principal:
        principal = _principal_of(request)
        if not principal.may(self.permission):
            raise HttpError(403, principal.lacks(self.permission))
        if isinstance(principal, User) and check_csrf(request) is not None:
            raise HttpError(403, "The CSRF token is missing or wrong (header X-CSRFToken).")
        if request.method not in SAFE and is_read_only():
            raise HttpError(403, READ_ONLY)
        return let_in(request, principal)


def may(request: HttpRequest, permission: str) -> bool:
    """Return True if the client of ``request``, which its route has admitted, has ``permission``.
    A client without credentials, in the compatible mode, has every permission."""
    return principal_of(request).may(permission)


def caller(request: HttpRequest) -> str:
    """Return the name under which ledgers record the client of ``request``, whom its route let
    in."""
    return principal_of(request).name


def _principal_of(request: HttpRequest) -> Principal:
    kind, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() == "bearer":
        return _bearer(secret.strip())
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return User(user)
    if leasing_settings.API_ACCESS == "compatible":
        return _stranger(request)
    raise HttpError(401, UNKNOWN)


def _bearer(secret: str) -> Principal:
    token = ApiToken.objects.bearing(secret)
    if token is None:
        raise HttpError(401, UNKNOWN)
    ApiToken.objects.note_use(token)
    return Token(token)


def _stranger(request: HttpRequest) -> Principal:
    address = client_address(request)
    if address is None and is_forwarded(request):
        raise HttpError(403, "Requests without credentials are not accepted through this proxy.")
    if address is None or not is_in(address, leasing_settings.API_COMPATIBLE_HOSTS):
        raise HttpError(403, "Requests without credentials are not accepted from this address.")
    # get_host() also refuses host names that are not in ALLOWED_HOSTS: a page of another site may
    # let its own host name point to this server.
    host = request.get_host()
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise HttpError(403, "Requests without credentials are not accepted from other sites.")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise HttpError(403, "Requests without credentials are not accepted from other sites.")
    return Principal(f"{STRANGER}{address}")
