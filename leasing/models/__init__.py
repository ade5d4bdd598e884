"""Models of leases, a file for each noun."""

from __future__ import annotations

from leasing.models.api_token import ApiToken
from leasing.models.audit import AuditEntry
from leasing.models.beat import BeatEntry
from leasing.models.event import MAX_KEY, MAX_LABEL, EventKind, LeaseEvent
from leasing.models.leasable import Leasable, Listing, leasable_models, lease_kinds
from leasing.models.lease import Lease
from leasing.models.ledger import Ledger
from leasing.models.once import OnceKey
from leasing.querysets import LeasableQuerySet, LeaseState

__all__ = [
    "MAX_KEY",
    "MAX_LABEL",
    "ApiToken",
    "AuditEntry",
    "BeatEntry",
    "EventKind",
    "Leasable",
    "LeasableQuerySet",
    "Lease",
    "LeaseEvent",
    "LeaseState",
    "Ledger",
    "Listing",
    "OnceKey",
    "leasable_models",
    "lease_kinds",
]
