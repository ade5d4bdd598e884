"""The JSON API of leases: mount ``router`` on a ``LeasingAPI``."""

from __future__ import annotations

from leasing.api.errors import LeasingAPI, bad_request
from leasing.api.lease import router

__all__ = ["LeasingAPI", "bad_request", "router"]
