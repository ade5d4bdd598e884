"""The address that a request was sent from, behind proxies too.

Anybody can send ``X-Forwarded-For``. Each proxy appends the address that called it. So the header
is read from its end, and only as far as proxies that API_TRUSTED_PROXIES names have written it::

    X-Forwarded-For: 127.0.0.1, 203.0.113.7, 10.0.0.2      the connection is from 10.0.0.3
                     ^ claimed  ^ the client  ^ trusted                           ^ trusted
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from django.http import HttpRequest

from leasing.conf import UNIX_SOCKET, leasing_settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Headers of proxies, or their prefixes: a request with one was forwarded, or pretends to be. Many
#: proxies are configured to send X-Forwarded-Proto and nothing else.
FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "via")


def client_address(request: HttpRequest) -> Address | None:
    """Return the address of the client of ``request``; None if it is unknown: a trusted proxy does
    not send it, or a proxy that is not trusted forwarded the request."""
    trusted = leasing_settings.API_TRUSTED_PROXIES
    peer = request.META.get("REMOTE_ADDR") or ""
    if not _is_trusted(peer, trusted):
        return None if is_forwarded(request) else address_of(peer)
    hops = [hop.strip() for hop in request.headers.get("X-Forwarded-For", "").split(",")]
    while len(hops) > 1 and _is_trusted(hops[-1], trusted):
        hops.pop()
    return address_of(hops[-1])


def is_forwarded(request: HttpRequest) -> bool:
    """Return True if ``request`` says that a proxy passed it on."""
    return any(name.lower().startswith(FORWARDED) for name in request.headers)


def is_in(address: Address, networks: Iterable[str]) -> bool:
    """Return True if ``address`` is in one of ``networks``."""
    return any(address in ipaddress.ip_network(each) for each in networks if each != UNIX_SOCKET)


def address_of(text: str) -> Address | None:
    """Return the address that ``text`` is; None if it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_trusted(peer: str, trusted: Iterable[str]) -> bool:
    if not peer:
        return UNIX_SOCKET in trusted  # a connection over a socket has no address
    address = address_of(peer)
    return address is not None and is_in(address, trusted)
