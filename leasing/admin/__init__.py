"""Django's admin of leases, beats and ledgers; ``base`` is shared with tasks."""

from __future__ import annotations

from leasing.admin.api_tokens import ApiTokenAdmin
from leasing.admin.beats import BeatEntryAdmin
from leasing.admin.leases import LeasableAdmin, LeaseAdmin, OnceKeyAdmin
from leasing.admin.ledgers import AuditEntryAdmin, LeaseEventAdmin

__all__ = [
    "ApiTokenAdmin",
    "AuditEntryAdmin",
    "BeatEntryAdmin",
    "LeasableAdmin",
    "LeaseAdmin",
    "LeaseEventAdmin",
    "OnceKeyAdmin",
]
