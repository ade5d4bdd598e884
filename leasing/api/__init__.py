"""The JSON API of leases: mount ``router`` on a ``LeasingAPI``. A site that serves no leases to
clients mounts ``health_router`` in its place, which ``router`` contains."""

from __future__ import annotations

from leasing.api.errors import LeasingAPI, bad_request
from leasing.api.health import router as health_router
from leasing.api.lease import router

__all__ = ["LeasingAPI", "bad_request", "health_router", "router"]
