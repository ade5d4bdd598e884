"""Checks of the API's exposure, behind proxies and by tokens: ``manage.py check --deploy``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import DatabaseError

from leasing.conf import UNIX_SOCKET, leasing_settings

#: Names that a message has, at most.
NAMED = 5


@register(Tags.security, deploy=True)
def check_proxies(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report trusted networks that are too wide, and sessions that a TLS-terminating proxy
    breaks."""
    trusted = leasing_settings.API_TRUSTED_PROXIES
    if not trusted:
        return
    crowds = [each for each in trusted if _is_crowd(each)]
    if crowds and leasing_settings.API_ACCESS == "compatible":
        yield Warning(
            "Clients without credentials can claim any address in X-Forwarded-For if they are in "
            f"{', '.join(crowds)}.",
            hint="List the addresses of the proxies in LEASING['API_TRUSTED_PROXIES'], not a "
            "network that has other hosts too.",
            id="leasing.W109",
        )
    is_told = settings.SECURE_PROXY_SSL_HEADER or settings.CSRF_TRUSTED_ORIGINS
    if settings.CSRF_COOKIE_SECURE and not is_told:
        yield Warning(
            "Behind a proxy that terminates TLS, Django treats requests as plain HTTP and refuses "
            "changes by signed-in users over the API.",
            hint='Set SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if the proxy '
            "sets that header itself, or name the site in CSRF_TRUSTED_ORIGINS.",
            id="leasing.W110",
        )


def _is_crowd(text: str) -> bool:
    if text == UNIX_SOCKET:
        return False
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return False  # leasing.E008 says so
    return network.num_addresses > 256


@register(Tags.database, deploy=True)
def check_tokens(databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Report tokens that never expire, if the database of leases is checked."""
    if leasing_settings.DATABASE not in (databases or ()):
        return
    tokens: Any = apps.get_model("leasing", "ApiToken")._default_manager
    endless = tokens.home().usable().filter(expires_at=None)
    try:
        names = list(endless.values_list("name", flat=True)[: NAMED + 1])
    except DatabaseError:
        return  # before the first migration
    if not names:
        return
    listed = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    yield Warning(
        f"These API tokens never expire: {listed}.",
        hint="A leaked token works until someone revokes it. Replace it by one that expires: "
        "manage.py api_tokens create.",
        id="leasing.W111",
    )
