"""Addresses of services."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_unencrypted(url: str) -> bool:
    """Return True if what is sent to ``url`` crosses a network that others may read."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
