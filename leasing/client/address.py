"""The address of a service, and the token for it: checked before anything is sent."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

from leasing.runtime.terminal import plain


def checked_url(url: str) -> str:
    """Return ``url`` without a slash at its end. Raises ValueError if it is no address of HTTP."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("The address must contain no password: give the token instead.")
    try:
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):  # a port, for example
        is_one = False
    if not is_one or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError(
            f"{plain(url)!r} is not the address of an API, such as https://example.com/api."
        )
    return url.rstrip("/")


def checked_token(token: str) -> str:
    """Return ``token``. Raises ValueError, which does not tell it, if no header can have it."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            "The token must be printable ASCII without spaces. One that was read from a file may "
            "end with a line break."
        )
    return token
