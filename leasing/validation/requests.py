"""Bounds of requests of the HTTP API, which the service keeps and its clients know."""

from __future__ import annotations

from typing import Final

#: The greatest size of a body, in bytes, and of one that renews leases.
MAX_BODY: Final = 64 * 1024
MAX_RENEWAL_BODY: Final = 1024 * 1024
#: Tasks of one request.
MAX_TASKS: Final = 100
