"""Decide who may call the API: nobody without permission, unless the site says otherwise.

**Closed** (the default): a signed-in, active user who has the permission of the route, or a token
with that permission among its scopes. The session's cookie says who the user is; a request that
changes something proves by Django's CSRF token that the user meant it. A token comes in a header,
which no page of another site can make a browser send: it is judged alone, whatever cookies come
with it.

**Compatible**: as well, clients of the public sample service, which have no credentials, from the
networks in ``API_COMPATIBLE_HOSTS`` and nowhere else. The address is that of the connection, or
behind a proxy that ``API_TRUSTED_PROXIES`` names the one that this proxy was called from (see
``leasing.api.networks``). A request that another proxy forwarded is refused: behind one on this
machine everyone would come from loopback (a proxy that adds no header cannot be told from a
client: this mode is not for sites behind such a one). So is one that a browser sends for a page of
another site. Who comes with a session or a token is judged as in the closed mode, here too.

A site that is **read-only** refuses every request that would change something, from every client:
workers that work over HTTP, too.
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
#: The same for no credentials and for wrong ones: a hint would help those who guess.
UNKNOWN = "Sign in, or send a valid token."


def scope(permission: str) -> str:
    """Return ``permission``, which tokens can be given as a scope from now on. What a route
    requires is one already."""
    add_scope(permission)
    return permission


class Access:
    """Lets those through who have ``permission``; give it to a route as its ``auth``.

    A permission is a scope of tokens too, by the same name. Raises HttpError: 401 for nobody, 403
    for the wrong one.
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
    """Return True if the client of ``request``, whom its route has let in, has ``permission``;
    one without credentials, in the compatible mode, has every one."""
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
    # Asked for each request, since it also refuses names that are not ours: a page of another
    # site may have its own name point here.
    host = request.get_host()
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise HttpError(403, "Requests without credentials are not accepted from other sites.")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise HttpError(403, "Requests without credentials are not accepted from other sites.")
    return Principal(f"{STRANGER}{address}")
